"""The verb that writes text with a trained run: as it comes, several texts side by side, or by beam search."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txl.config import ConfigError
from txl.verbs.checked import arguments_checked, go_on_from

if TYPE_CHECKING:
    from txl.checkpoint import Bundle
    from txl.infer import Session
    from txl.infer.generate import Written

RULES = {
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "min_p": None,
    "typical_p": None,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
}
"""The options that are fields of `Sampling`, with their defaults."""
PARAMETERS = ("window", "max_new_tokens", "beams", "length_penalty", "stop", "stop_ids", "seed", *RULES)
"""Names in messages of `txl.infer` that are options here."""


def generate(
    run: Path,
    checkpoint: str,
    window: int | None,
    prompts: Sequence[str] | None,
    prompt_file: str | None,
    state: Path | None,
    max_new_tokens: int | None,
    greedy: bool,
    beams: int | None,
    length_penalty: float,
    stop: Sequence[str] | None,
    stop_ids: Sequence[Sequence[int]] | None,
    seed: int,
    log_probs: bool,
    overrides: Sequence[str],
    **rules: float | None,
) -> None:
    """Write text after a prompt, as it comes; `rules` are the fields of `Sampling`."""
    texts = prompts_of(prompts, "-" if "-" in overrides else prompt_file)
    if greedy and rules["temperature"] not in (0.0, RULES["temperature"]):
        raise ConfigError([f"--greedy: found --temperature {rules['temperature']} too; allowed: one of them"])
    rules = {**rules, "temperature": 0.0} if greedy else rules
    _check(len(texts), max_new_tokens, beams, length_penalty, bool(stop), rules, log_probs)
    from txl.infer import Sampling, generate_texts, opening_note
    from txl.train.compare import loaded

    bundle = loaded(run, checkpoint, [word for word in overrides if word != "-"])
    with arguments_checked(*PARAMETERS):
        sampling = Sampling(**rules)  # type: ignore[arg-type]
        session = session_of(bundle, len(texts), window, state)
        for note in dict.fromkeys(opening_note(session, bundle.tokenizer, text) for text in texts):
            if note is not None:
                print(note, file=sys.stderr)
        if beams is not None and max_new_tokens is not None:
            return search(
                bundle, session, texts[0], max_new_tokens, beams, length_penalty, stop_ids or (), seed, log_probs
            )
        written = generate_texts(
            session,
            bundle.tokenizer,
            texts,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stop or (),
            stop_ids=stop_ids or (),
            seed=seed,
        )
    written = until_stopped(written)
    if log_probs:
        show_tokens(written)
    elif len(texts) > 1:
        show_texts(written, texts)
    else:
        show(one.text for one in written)
        print()
    return None


def until_stopped(written: Iterable[Written]) -> Iterator[Written]:
    """The same, until a signal comes: noted while a token is made and answered after it, so that none is lost in it.

    Raises Preempted then. Before the first token, while a long prompt is read, a signal ends the process as ever.
    """
    from txl.train.signals import Preempted, Signals

    with Signals() as signals:
        for number, one in enumerate(written):
            if number == 0:
                signals.arm()
            yield one
            if signals.received:
                raise Preempted(signals.received, "stopped")


def session_of(bundle: Bundle, rows: int, window: int | None, state: Path | None) -> Session:
    """A session for so many texts: fresh, or all standing where `txl score --state` stopped."""
    from txl.checkpoint import read_stream
    from txl.infer import Session

    if state is None:
        session = Session(bundle.model, rows, window)
    else:
        tensors, _ = read_stream(state)
        if window is None and "window" in tensors and bundle.model.reach(0) is not None:
            window = int(tensors["window"])
        session = Session(bundle.model, window=window)
        go_on_from(session, tensors, state)
        session = session.fork(rows=[0] * rows)
    if session.recomputes:
        print(f"positions are absolute: each token's window of {session.window} is computed anew", file=sys.stderr)
    return session


def search(
    bundle: Bundle,
    session: Session,
    prompt: str,
    max_new_tokens: int,
    beams: int,
    length_penalty: float,
    stop_ids: Sequence[Sequence[int]],
    seed: int,
    log_probs: bool,
) -> None:
    """Print the best continuation that beam search finds, or all it finds as JSON."""
    from txl.infer import beam_search, read_prompts
    from txl.infer.checks import checked_stop

    stop_ids = checked_stop(stop_ids, vocab_size=session.model.vocab_size, name="stop_ids")
    (said,) = read_prompts(session, bundle.tokenizer, [prompt])
    before = bundle.tokenizer.decode(said)
    if int(session.ages[0]) == 0:  # nothing to go on from: the first token is drawn, as opening_note says
        said = [int(next(session.generate(1, seed=seed)))]
        max_new_tokens -= 1
    found = beam_search(session, max_new_tokens, beams=beams, length_penalty=length_penalty, stop=stop_ids)
    for text in found if log_probs else found[:1]:
        shown = bundle.tokenizer.decode([*said, *text.ids])[len(before) :]
        if log_probs:
            numbers = {"log_prob": round(text.log_prob, 6), "score": round(text.score(length_penalty), 6)}
            print(json.dumps({"text": shown, "tokens": len(text.ids), **numbers}, ensure_ascii=False))
        else:
            show([shown])
            print()


def show(pieces: Iterable[str]) -> None:
    """Print text as it comes."""
    from txl.terminal import printable

    for piece in pieces:
        print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)


def show_tokens(written: Iterable[Written]) -> None:
    """Print each token as a JSON object: the number of its prompt, its id, its text and its log-probability."""
    for one in written:
        number = None if one.log_prob is None else round(one.log_prob, 6)
        record = {"prompt": one.row, "token": one.token, "text": one.text, "log_prob": number}
        print(json.dumps(record, ensure_ascii=False), flush=True)


def show_texts(written: Iterable[Written], prompts: Sequence[str]) -> None:
    """Print each text as a JSON object, in the order of the prompts."""
    texts = ["" for _ in prompts]
    tokens = [0 for _ in prompts]
    sums = [0.0 for _ in prompts]
    for one in written:
        texts[one.row] += one.text
        tokens[one.row] += one.token is not None
        sums[one.row] += one.log_prob or 0.0
    for prompt, text, count, total in zip(prompts, texts, tokens, sums, strict=True):
        record = {"prompt": prompt, "text": text, "tokens": count, "log_prob": round(total, 6)}
        print(json.dumps(record, ensure_ascii=False))


def prompts_of(given: Sequence[str] | None, source: str | None) -> list[str]:
    """The prompts: given, or one from a file, from standard input (-), or an empty one. Raises ConfigError where it is
    no UTF-8."""
    if source is None:
        return list(given or [""])
    if given is not None:
        raise ConfigError([f"prompt: found --prompt and {source}; allowed: one of them"])
    try:
        return [(sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()).decode("utf-8")]
    except UnicodeDecodeError as error:
        found = f"a byte that is not UTF-8 at offset {error.start}"
        raise ConfigError([f"prompt {source}: found {found}; allowed: text in UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"prompt {source}: cannot be read ({error.strerror}); allowed: a file, or - "]) from None


def _check(
    prompts: int,
    max_new_tokens: int | None,
    beams: int | None,
    length_penalty: float,
    stop: bool,
    rules: dict[str, float | None],
    log_probs: bool,
) -> None:
    """Raise ConfigError naming every option that another one excludes."""
    problems = []
    if max_new_tokens is not None and max_new_tokens < 0:
        problems.append(f"--max-new-tokens: found {max_new_tokens}; allowed: at least 0, or inf for no end")
    if prompts > 1 and max_new_tokens is None and not log_probs:
        problems.append(
            "--max-new-tokens: found inf with several prompts, whose texts are shown at their end; "
            "allowed: a number, or --log-probs, which shows each token as it comes"
        )
    if beams is None and length_penalty != 1:
        problems.append(f"--length-penalty: found {length_penalty} without --beams, which alone rank whole texts")
    if beams is not None:
        drawing = [f"--{name.replace('_', '-')}" for name, value in rules.items() if value != RULES[name]]
        if drawing:
            problems.append(f"--beams: found {', '.join(drawing)} too; allowed: neither, for beams draw nothing")
        if max_new_tokens is None:
            problems.append("--beams: found --max-new-tokens inf; allowed: a number, for no search ends otherwise")
        if prompts > 1:
            problems.append(f"--beams: found {prompts} prompts; allowed: one")
        if stop:
            problems.append("--beams: found --stop; allowed: --stop-ids, for beams know ids alone")
    if problems:
        raise ConfigError(problems)
