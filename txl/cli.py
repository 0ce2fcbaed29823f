"""The command line: argv -> one verb with its arguments -> an exit code.

Exit codes: 0 done; 2 bad config, data or arguments; 3 not finite; 130 and 143 stopped by Ctrl-C or a signal, and saved;
1 a fault of txl itself, with a traceback. Knows nothing of what a verb does (`txl.verbs`), and loads no torch.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

EXIT_CODES = {"ConfigError": 2, "DataError": 2, "CheckpointError": 2, "NonFiniteError": 3}
"""Errors of this package that a user can meet, by the name of their class, for importing their rooms takes seconds."""


@dataclass(frozen=True)
class Verb:
    """One word of the command line: what it does, examples of it, its arguments, and its function in `txl.verbs`."""

    summary: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    function: str


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; `words` are those after `txl`. Returns the exit code; argparse exits by itself for --help."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] == "--version":
        from txl import __version__

        print(f"txl {__version__}")
        return 0
    if words[0] not in VERBS:
        near = difflib.get_close_matches(words[0], VERBS, 1)
        hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(VERBS)}"
        print(f"txl: unknown verb {words[0]!r}; {hint}", file=sys.stderr)
        return 2
    arguments = vars(parser_of(words[0]).parse_intermixed_args(words[1:]))
    try:
        from txl import verbs

        getattr(verbs, VERBS[words[0]].function)(**arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("\ntxl: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print(f"txl {words[0]}: {error}", file=sys.stderr)
        return code
    return 0


def exit_code(error: Exception) -> int | None:
    """The code an error of this package ends with; None for one that no user can cause."""
    if isinstance(error, FloatingPointError):
        return EXIT_CODES["NonFiniteError"]
    for kind in type(error).__mro__:
        if kind.__module__.split(".")[0] == "txl" and kind.__name__ in EXIT_CODES:
            return EXIT_CODES[kind.__name__]
        if kind.__module__.split(".")[0] == "txl" and kind.__name__ == "Preempted":
            return int(error.exit_code)  # type: ignore[attr-defined]
    return None


def overview() -> str:
    """What `txl --help` prints."""
    lines = ["txl: Transformer-XL language models, from text to a trained model, its measurements and text without end"]
    lines += ["", "usage: txl VERB ...        (txl VERB --help says more)", ""]
    lines += [f"  {name:<10}{verb.summary}" for name, verb in VERBS.items()]
    return "\n".join([*lines, "", "begin with: txl compare configs/quickstart.yaml"])


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one verb's arguments; what it gives are the keyword arguments of the verb's function."""
    summary = VERBS[name].summary
    parser = argparse.ArgumentParser(
        prog=f"txl {name}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="\n  ".join(["for example:", *VERBS[name].examples.splitlines()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    VERBS[name].arguments(parser)
    return parser


def config_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG k=v ..."""
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file; what it leaves out is the default")
    add_overrides(parser, "settings on top of the file, e.g. model.mem_len=64")


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG ... k=v ..."""
    parser.add_argument(
        "words",
        metavar="CONFIG or section.field=value",
        nargs="+",
        help="YAML files, and settings for all of them. A single X.yaml is compared with X-vanilla.yaml beside it. "
        "run.dir=FOLDER puts each run into FOLDER under the last part of its own run.dir, the report beside the runs",
    )


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN --checkpoint --window."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder (run.dir), or one of its checkpoints")
    parser.add_argument(
        "--checkpoint", choices=["newest", "best"], default="newest", help="which of the run's (newest)"
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="earlier positions each layer may see (the model's own)"
    )


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of a run, and what to score."""
    run_arguments(parser)
    parser.add_argument("--context", metavar="N,N,...", help="score these context lengths too: the curve")
    parser.add_argument("--split", choices=["train", "valid", "test"], default="test", help="what to score (test)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="streams side by side; changes no result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    add_overrides(
        parser, "other text, memory or machine, e.g. data.test=book.txt model.clamp_len=400 runtime.threads=4"
    )


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of a run, a prompt, and how to draw."""
    run_arguments(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the text to go on from")
    prompt.add_argument("--prompt-file", metavar="FILE", help="the same from a file; - for standard input")
    parser.add_argument("--max-new-tokens", type=int, default=500, metavar="N", help="how many tokens to write (500)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="below 1 is safer, above 1 wilder (1)"
    )
    parser.add_argument("--greedy", action="store_true", help="always take the most probable token")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K most probable tokens alone")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the fewest tokens that have this probability"
    )
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; can be given repeatedly")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same text (0)")
    add_overrides(parser, "e.g. model.mem_len=512 runtime.device=cpu; a lone - reads the prompt from standard input")


def import_arguments(parser: argparse.ArgumentParser) -> None:
    """PATH --out --hparams --vocab."""
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="a TransfoXL folder of transformers, or a state dict of the 2019 code"
    )
    parser.add_argument("--out", type=Path, metavar="RUN", help="the run folder to write (runs/ and the name of PATH)")
    parser.add_argument(
        "--hparams", type=Path, metavar="JSON", help="arguments of the 2019 model (PATH with the ending .json)"
    )
    parser.add_argument(
        "--vocab",
        type=Path,
        metavar="FILE",
        help="vocab.txt, vocab.json or tokenizer.json (the one beside the weights)",
    )


def export_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN OUT --format --checkpoint."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder (run.dir), or one of its checkpoints")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    parser.add_argument(
        "--format", dest="as_format", choices=["transfo-xl"], required=True, help="transfo-xl: what transformers reads"
    )
    parser.add_argument(
        "--checkpoint", choices=["newest", "best"], default="newest", help="which of the run's (newest)"
    )


def add_overrides(parser: argparse.ArgumentParser, words: str) -> None:
    """k=v ..."""
    parser.add_argument("overrides", metavar="section.field=value", nargs="*", default=[], help=words)


VERBS = {
    "compare": Verb(
        "train what is missing of two or more configs, measure them on the same tokens, write a report",
        "txl compare configs/quickstart.yaml\n"
        "txl compare configs/quickstart.yaml data.train=my-texts/ run.dir=runs/mine",
        compare_arguments,
        "compare",
    ),
    "train": Verb(
        "train a config, going on from the newest checkpoint of its run folder",
        "txl train configs/quickstart.yaml model.mem_len=64 run.dir=runs/short\n"
        "accelerate launch -m txl train configs/quickstart.yaml          (a process on each GPU)\n"
        "torchrun --nproc_per_node 2 -m txl train configs/quickstart.yaml (two processes on any machine)",
        config_arguments,
        "train",
    ),
    "eval": Verb(
        "score text with a trained run: perplexity and bits per byte, also against context length",
        "txl eval runs/quickstart/xl --context 16,32,64,128 --json scores.json\n"
        "txl eval runs/quickstart/xl data.test=book.txt",
        eval_arguments,
        "evaluate",
    ),
    "generate": Verb(
        "write text after a prompt with a trained run",
        'txl generate runs/quickstart/xl --prompt "def main(" --temperature 0.8 --seed 3\n'
        "head -c 2000 book.txt | txl generate runs/quickstart/xl - --max-new-tokens 200",
        generate_arguments,
        "generate",
    ),
    "prepare": Verb(
        "turn text into a prepared corpus and say what is in it",
        "txl prepare configs/quickstart.yaml data.train='books/*.txt'",
        config_arguments,
        "prepare",
    ),
    "validate": Verb(
        "do everything but the training: data, tokenizer, one step; the run's parameters, FLOPs, bytes and time",
        "txl validate configs/quickstart.yaml",
        config_arguments,
        "validate",
    ),
    "import": Verb(
        "read a published Transformer-XL checkpoint into a run folder",
        "txl import transfo-xl-wt103/ --out runs/wt103\ntxl import enwik8.bin --hparams enwik8.json --vocab vocab.txt",
        import_arguments,
        "import_run",
    ),
    "export": Verb(
        "write a trained run of the paper's kind (relative positions, post-norm) as a folder that other software reads",
        "txl export runs/wt103 exported/ --format transfo-xl",
        export_arguments,
        "export_run",
    ),
    "config": Verb(
        "check a config and print it with every default filled in",
        "txl config configs/quickstart.yaml optim.lr=3e-4",
        config_arguments,
        "config",
    ),
}
