"""Text after text: a prompt in, the model's continuation out piece by piece as it is drawn, never half a character.

Turns strings into ids for a `Session` and its ids back into strings, and ends at stop strings, wherever they fall
between tokens. Knows nothing of files or terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from txl.infer.checks import checked_stop
from txl.infer.drawing import Drawn
from txl.infer.sampling import Sampling
from txl.infer.session import Session

if TYPE_CHECKING:
    from txl.data import Tokenizer
    from txl.data.decoding import StreamDecoder


@dataclass(frozen=True)
class Written:
    """One drawn token of a row and what it adds to the row's text.

    text: what became certain with it, "" inside a character or what may be the beginning of a stop string. log_prob:
    nats, by the model itself, before temperature and filters. token and log_prob are None where the end of a row sets
    free what was held back.
    """

    row: int
    token: int | None
    text: str
    log_prob: float | None


def generate_text(
    session: Session,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    stop: str | Sequence[str] = (),
    seed: int = 0,
) -> Iterator[str]:
    """Read the prompt and continue it: yields pieces of text that joined are the continuation, without the prompt.

    session: of one row; what it was fed before stays its context. temperature to frequency_penalty: see `Sampling`.
    The rest is as for `generate_texts`.
    """
    if session.batch_size != 1:
        raise ValueError(f"the session has {session.batch_size} rows: text is generated in a session of 1 row")
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
    )
    written = generate_texts(
        session, tokenizer, [prompt], max_new_tokens=max_new_tokens, sampling=sampling, stop=stop, seed=seed
    )
    return (one.text for one in written if one.text)


def generate_texts(
    session: Session,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Sequence[Sequence[int]] = (),
    seed: int | Sequence[int] = 0,
) -> Iterator[Written]:
    """Read a prompt in each row and continue them side by side: yields each token of each row as it is drawn.

    session: of as many rows as prompts, of any ages; each row is written as if it were alone. max_new_tokens: None for
    no end. stop: strings. A row's text before the first one to be complete is yielded and nothing after, though the
    session has read the tokens that made it, and goes on reading until every row has ended. stop_ids: lists of ids
    that end a row after their own text. seed: row b draws from seed + b, or from the b-th of a list.

    A prompt without tokens in a row that was fed nothing starts as `opening_note` says; nothing else is ever put
    before a text. The prompts are read at the call, the rest drawn as it is asked for.
    Raises ValueError at the call if an argument is out of range or tokenizer and model do not fit.
    """
    stops = _checked_stops(stop)
    _check_fit(session, tokenizer, len(prompts))
    ending = checked_stop(stop_ids, vocab_size=tokenizer.vocab_size, name="stop_ids")
    drawn = session.draw(max_new_tokens, sampling, stop=ending, seed=seed)
    said = read_prompts(session, tokenizer, prompts)
    rows = [_Row(tokenizer.stream_decoder(), StopText(stops), ids) for ids in said]
    return _written(drawn, rows)


def read_prompts(session: Session, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[list[int]]:
    """Read a prompt in each row, unscored; the ids of each that belong to its text (a separator in front does not)."""
    opening = [opening_ids(session, tokenizer, prompt, row) for row, prompt in enumerate(prompts)]
    longest = max(map(len, opening))
    padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids in opening], dtype=torch.int64)
    session.read(padded, None if len(set(map(len, opening))) == 1 else [len(ids) for ids in opening])
    return [[] if ids == [tokenizer.separator_id] else ids for ids in opening]


def opening_ids(session: Session, tokenizer: Tokenizer, prompt: str, row: int = 0) -> list[int]:
    """What is read for a prompt: its ids; where it has none and the row is new, the separator if there is one."""
    ids = tokenizer.encode(prompt)
    if ids or bool(session.ages[row] > 0) or tokenizer.separator_id is None:
        return ids
    return [tokenizer.separator_id]


def opening_note(session: Session, tokenizer: Tokenizer, prompt: str) -> str | None:
    """What to tell the reader of a start without a prompt; None where the text goes on after other text."""
    if tokenizer.encode(prompt) or bool(session.ages[0] > 0):
        return None
    if opening_ids(session, tokenizer, prompt):
        return "no prompt: the text starts after a document separator"
    return f"no prompt: the first token is drawn uniformly from the {tokenizer.vocab_size} of the vocabulary"


class StopText:
    """Lets text through until a stop string is complete and holds back what may be the beginning of one.

    How the text is cut into pieces changes nothing: the first stop string to be complete ends it, of two that end
    together the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.ended = False

    def push(self, text: str) -> str:
        """What may be shown after some more text."""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.ended = True
            return self._release(min(found)[1])
        longest = min(max(map(len, self._stops), default=1) - 1, len(self._held))
        tails = (n for n in range(longest, 0, -1) if any(stop.startswith(self._held[-n:]) for stop in self._stops))
        return self._release(len(self._held) - next(tails, 0))

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        return "" if self.ended else self._release(len(self._held))

    def _release(self, end: int) -> str:
        """Give away the first `end` characters held."""
        shown, self._held = self._held[:end], self._held[end:]
        return shown


@dataclass
class _Row:
    """What turns one row's ids into text; the ids said before pass the decoder first, so that spaces between words
    are right."""

    decoder: StreamDecoder
    gate: StopText
    said: Sequence[int]
    ended: bool = False

    def __post_init__(self) -> None:
        for token in self.said:
            self.decoder.push(token)

    def push(self, token: int) -> str:
        """The text that may be shown after one more id."""
        shown = self.gate.push(self.decoder.push(token))
        self.ended = self.gate.ended
        return shown

    def flush(self) -> str:
        """The rest, once no more ids come."""
        self.ended = True
        return self.gate.push(self.decoder.flush()) + self.gate.flush()


def _written(drawn: Iterator[Drawn], rows: list[_Row]) -> Iterator[Written]:
    """What `generate_texts` promises."""
    for step in drawn:
        ids = step.ids.tolist()
        places = step.ids.clamp(min=0)[:, None].to(step.log_probs.device)
        log_probs = step.log_probs.gather(1, places)[:, 0].tolist()
        for number, row in enumerate(rows):
            if row.ended:
                continue
            if ids[number] >= 0:
                yield Written(number, ids[number], row.push(ids[number]), log_probs[number])
            elif rest := row.flush():
                yield Written(number, None, rest, None)
        if all(row.ended for row in rows):
            return
    for number, row in enumerate(rows):
        if not row.ended and (rest := row.flush()):
            yield Written(number, None, rest, None)


def _check_fit(session: Session, tokenizer: Tokenizer, prompts: int) -> None:
    """Raise ValueError where session, tokenizer and prompts do not belong together."""
    if session.batch_size != prompts:
        raise ValueError(
            f"the session has {session.batch_size} rows for {prompts} prompts: each needs a row of its own"
        )
    if session.model.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"the model has {session.model.vocab_size} ids and the tokenizer {tokenizer.vocab_size}: "
            "they must come from the same run"
        )


def _checked_stops(stop: str | Sequence[str]) -> list[str]:
    """Stop strings as a list; one string stands for itself."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if any(not isinstance(one, str) or not one for one in stops):
        raise ValueError(f"stop is {stops}: must be strings of at least one character")
    return stops
