"""Verbs that write text with a trained run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from txl.config import ConfigError
from txl.verbs.checked import arguments_checked


def generate(
    run: Path,
    checkpoint: str,
    window: int | None,
    prompt: str | None,
    prompt_file: str | None,
    max_new_tokens: int,
    temperature: float,
    greedy: bool,
    top_k: int | None,
    top_p: float | None,
    stop: Sequence[str] | None,
    seed: int,
    overrides: Sequence[str],
) -> None:
    """Write text after a prompt, as it comes."""
    text = prompt_of(prompt, "-" if "-" in overrides else prompt_file)
    from txl.infer import Session, generate_text, opening_note
    from txl.terminal import printable
    from txl.train.compare import loaded

    bundle = loaded(run, checkpoint, [word for word in overrides if word != "-"])
    session = Session(bundle.model)
    note = opening_note(session, bundle.tokenizer, text)
    with arguments_checked():
        pieces = generate_text(
            session if window is None else Session(bundle.model, window=window),
            bundle.tokenizer,
            text,
            max_new_tokens=max_new_tokens,
            temperature=0.0 if greedy else temperature,
            top_k=top_k,
            top_p=top_p,
            stop=stop or (),
            seed=seed,
        )
    if note:
        print(note, file=sys.stderr)
    for piece in pieces:
        print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)
    print()


def prompt_of(prompt: str | None, source: str | None) -> str:
    """The prompt: given, from a file, from standard input (-), or none. Raises ConfigError where it is no UTF-8."""
    if source is None:
        return prompt or ""
    if prompt is not None:
        raise ConfigError([f"prompt: found --prompt and {source}; allowed: one of them"])
    try:
        return (sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"a byte that is not UTF-8 at offset {error.start}"
        raise ConfigError([f"prompt {source}: found {found}; allowed: text in UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"prompt {source}: cannot be read ({error.strerror}); allowed: a file, or - "]) from None
