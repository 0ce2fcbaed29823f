"""The verbs of the command line, in the order in which `txl --help` names them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from txl.cli import arguments


@dataclass(frozen=True)
class Verb:
    """One word of the command line: what it does, examples of it, its arguments, and its function, `module.name` in
    `txl.verbs`."""

    summary: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    function: str


VERBS = {
    "compare": Verb(
        "train what is missing of configs (several, or one with a -vanilla twin beside it), measure them on the same "
        "tokens, write a report",
        "txl compare configs/quickstart.yaml\n"
        "txl compare configs/quickstart.yaml data.train=my-texts/ run.dir=runs/mine\n"
        "txl compare runs/one runs/other runs/third",
        arguments.compare_arguments,
        "training.compare",
    ),
    "train": Verb(
        "train a config, going on from the newest checkpoint of its run folder",
        "txl train configs/quickstart.yaml model.mem_len=64 run.dir=runs/short\n"
        "accelerate launch -m txl train configs/quickstart.yaml          (a process on each GPU)\n"
        "torchrun --nproc_per_node 2 -m txl train configs/quickstart.yaml (two processes on any machine)",
        arguments.config_arguments,
        "training.train",
    ),
    "watch": Verb(
        "draw the loss curves of runs in the terminal, over each other, also while they train",
        "txl watch runs/quickstart/xl runs/quickstart/vanilla --over tokens\n"
        "txl watch runs/mine --follow --metric bits_per_byte --metric lr",
        arguments.watch_arguments,
        "watching.watch",
    ),
    "eval": Verb(
        "score text with a trained run: perplexity and bits per byte, also against context length",
        "txl eval runs/quickstart/xl --context 16,32,64,128 --json scores.json\n"
        "txl eval runs/quickstart/xl --context 64,128,256 --kind truncated eval.sample_targets=5000\n"
        "txl eval runs/quickstart/xl data.test=book.txt",
        arguments.eval_arguments,
        "measuring.evaluate",
    ),
    "score": Verb(
        "print how surprising each token, line, sentence or document of a text is, as it comes",
        "txl score runs/quickstart/xl book.txt --top 10\n"
        "txl score runs/quickstart/xl big.txt --state big.state > scores.jsonl\n"
        "tail -f server.log | txl score runs/quickstart/xl - --above 4",
        arguments.score_arguments,
        "scoring.score",
    ),
    "probe": Verb(
        "ask runs trained on data.train=recall how far back they recall and copy, against their receptive field",
        "txl probe runs/probe/xl runs/probe/vanilla",
        arguments.probe_arguments,
        "probing.probe",
    ),
    "generate": Verb(
        "write text after a prompt with a trained run",
        'txl generate runs/quickstart/xl --prompt "def main(" --temperature 0.8 --seed 3\n'
        "head -c 2000 book.txt | txl generate runs/quickstart/xl - --max-new-tokens 200\n"
        "txl generate runs/quickstart/xl --state big.state --max-new-tokens inf",
        arguments.generate_arguments,
        "writing.generate",
    ),
    "prepare": Verb(
        "turn text into a prepared corpus and say what is in it",
        "txl prepare configs/quickstart.yaml data.train='books/*.txt'",
        arguments.config_arguments,
        "corpus.prepare",
    ),
    "validate": Verb(
        "do everything but the training: data, tokenizer, one step; the run's parameters, FLOPs, bytes and time",
        "txl validate configs/quickstart.yaml\n"
        "txl validate configs/quickstart.yaml --world 16          (rows, bytes and streams of each of 16 processes)",
        arguments.validate_arguments,
        "corpus.validate",
    ),
    "bench": Verb(
        "time training, scoring and streaming of a config on this machine, and say what computes them",
        "txl bench configs/quickstart.yaml\n"
        "txl bench configs/paper/enwik8_base.yaml runtime.threads=2 data.batch_size=2",
        arguments.bench_arguments,
        "timing.bench",
    ),
    "import": Verb(
        "read a published Transformer-XL checkpoint into a run folder",
        "txl import transfo-xl-wt103/ --out runs/wt103\ntxl import enwik8.bin --hparams enwik8.json --vocab vocab.txt",
        arguments.import_arguments,
        "exchange.import_run",
    ),
    "export": Verb(
        "write a trained run of the paper's kind (relative positions, post-norm) as a folder that other software reads",
        "txl export runs/wt103 exported/ --format transfo-xl",
        arguments.export_arguments,
        "exchange.export_run",
    ),
    "config": Verb(
        "check a config and print it with every default filled in",
        "txl config configs/quickstart.yaml optim.lr=3e-4",
        arguments.config_arguments,
        "corpus.config",
    ),
}
