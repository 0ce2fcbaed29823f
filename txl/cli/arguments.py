"""The arguments of each verb: one function a verb fills its parser; what the parser gives are the keyword arguments of
the verb's function."""

from __future__ import annotations

import argparse
from pathlib import Path


def config_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG k=v ..."""
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file; what it leaves out is the default")
    add_overrides(parser, "settings on top of the file, e.g. model.mem_len=64")


def validate_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG k=v ... --world."""
    config_arguments(parser)
    parser.add_argument(
        "--world", type=int, metavar="N", help="check it for N processes, on this one (those there are)"
    )


def bench_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG --json k=v ..."""
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file; its model and runtime are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    add_overrides(parser, "e.g. runtime.threads=1 runtime.products=onednn model.mem_len=512")


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG ... k=v ..."""
    parser.add_argument(
        "words",
        metavar="CONFIG, RUN or section.field=value",
        nargs="+",
        help="YAML files or folders of runs, and settings for all of them. A single X.yaml is compared with "
        "X-vanilla.yaml beside it. "
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
    parser.add_argument(
        "--kind",
        choices=["window", "truncated", "at-least", "stride", "block"],
        help="what a context c is. window: through the cache, each layer sees c earlier positions. Fresh passes: "
        "truncated, exactly c tokens, on a sample of targets (eval.sample_targets); at-least, c to c + stride - 1 "
        "tokens; stride, c - stride + 1 to c; block, 1 to c (what suits the model: its cache and truncated)",
    )
    parser.add_argument("--stride", type=int, metavar="N", help="targets of a fresh pass, with at-least and stride")
    parser.add_argument("--split", choices=["train", "valid", "test"], default="test", help="what to score (test)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="streams side by side; changes no result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")
    add_overrides(
        parser, "other text, memory or machine, e.g. data.test=book.txt model.clamp_len=400 runtime.threads=4"
    )


def score_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of a run, the text, and what to print of it."""
    run_arguments(parser)
    parser.add_argument(
        "words",
        metavar="FILE or section.field=value",
        nargs="+",
        help="text, each file a document of its own; - reads standard input as it comes, for ever if it never ends. "
        "Settings, e.g. data.document_pattern='^ = ' (lines that begin a document) or runtime.device=cpu",
    )
    units = ["token", "line", "sentence", "document"]
    parser.add_argument("--unit", choices=units, default="line", help="what gets a record of its own (line)")
    parser.add_argument(
        "--format",
        dest="as_format",
        choices=["json", "tsv"],
        default="json",
        help="an object a line (json); or the columns bits a token, bits a byte, bits, tokens, file, line, offset, "
        "bytes, text",
    )
    parser.add_argument("--above", type=float, metavar="BITS", help="only what takes more bits a token than this")
    parser.add_argument("--top", type=int, metavar="N", help="only the N that take most bits a token, at the end")
    parser.add_argument(
        "--isolate",
        action="store_true",
        help="score each line (or sentence) alone; else in the memory of all before it in its document",
    )
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="save there where the work stands, and go on from there if it exists"
    )


def probe_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN ... --checkpoint --window --documents --json."""
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="folders of runs trained on recall")
    parser.add_argument(
        "--checkpoint", choices=["newest", "best"], default="newest", help="which of each run's (newest)"
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="earlier positions each layer may see (each model's own)"
    )
    parser.add_argument("--documents", type=int, default=8, metavar="N", help="new documents of 16,384 bytes (8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to this file")


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of a run, a prompt, and how to draw."""
    run_arguments(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt",
        metavar="TEXT",
        action="append",
        dest="prompts",
        help="the text to go on from; given repeatedly, the texts are written side by side, each as if alone",
    )
    prompt.add_argument("--prompt-file", metavar="FILE", help="the same from a file; - for standard input")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="go on from where txl score --state stopped; the file is only read"
    )
    parser.add_argument(
        "--max-new-tokens", type=count_or_inf, default=500, metavar="N", help="how many to write; inf for no end (500)"
    )
    _drawing_arguments(parser)
    parser.add_argument(
        "--beams", type=int, metavar="N", help="search the most probable text with N beams; draws nothing"
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="beams are ranked by log-probability / length^X: 0 favours short texts (1)",
    )
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; can be given repeatedly")
    parser.add_argument(
        "--stop-ids", action="append", type=ids_of, metavar="ID,ID", help="end after these token ids; can be repeated"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the same seed gives the same text; prompt k has N + k (0)"
    )
    parser.add_argument(
        "--log-probs", action="store_true", help="print each token as JSON with its log-probability by the model itself"
    )
    add_overrides(parser, "e.g. model.mem_len=512 runtime.device=cpu; a lone - reads the prompt from standard input")


def _drawing_arguments(parser: argparse.ArgumentParser) -> None:
    """The rules of `Sampling`."""
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="below 1 is safer, above 1 wilder (1)"
    )
    parser.add_argument("--greedy", action="store_true", help="always take the most probable token")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K most probable tokens alone")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the fewest tokens that have this probability"
    )
    parser.add_argument(
        "--min-p", type=float, metavar="P", help="draw from tokens of at least this share of the best one's probability"
    )
    parser.add_argument(
        "--typical-p",
        type=float,
        metavar="P",
        help="draw from tokens of surprisal nearest the mean one that have this probability",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="power of the probability of tokens among the last 256; above 1 repeats less (1)",
    )
    parser.add_argument(
        "--frequency-penalty",
        type=float,
        default=0.0,
        metavar="X",
        help="nats taken from a token for each time it is among the last 256 (0)",
    )


def count_or_inf(text: str) -> int | None:
    """A number of tokens, None for `inf`."""
    if text == "inf":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a whole number, or inf for no end") from None


def ids_of(text: str) -> list[int]:
    """Comma-separated ids."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: whole numbers with commas, e.g. 13,10") from None


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN ... --metric --over --follow."""
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run folders (run.dir), finished or not")
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="a number of metrics.jsonl, e.g. nll, lr, tokens_per_second; can be given repeatedly (bits per byte)",
    )
    parser.add_argument(
        "--over", choices=["step", "tokens", "seconds"], default="step", help="what the x axis is (step)"
    )
    parser.add_argument("--follow", action="store_true", help="draw anew every two seconds, until Ctrl-C")


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
