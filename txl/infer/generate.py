"""Text after text: a prompt in, the model's continuation out piece by piece as it is drawn, never half a character.

Turns strings into ids for a `Session` and its ids back into strings, and ends at stop strings, wherever they fall
between tokens. Knows nothing of files or terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from txl.infer.session import Session

if TYPE_CHECKING:
    from txl.data import Tokenizer


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
    """Feed the prompt and continue it: yields pieces of text that joined are the continuation, without the prompt.

    session: of one row; what it was fed before stays its context. max_new_tokens: None for no end.
    stop: strings. The text before the first one to be complete is yielded and nothing after, though the session has
    read the tokens that made it. temperature to frequency_penalty and seed: see `Session.generate`.

    A prompt without tokens in a session that was fed nothing starts as `opening_note` says; nothing else is ever put
    before a text. The prompt is fed at the call, the rest drawn as it is asked for.
    Raises ValueError at the call if an argument is out of range or tokenizer and model do not fit.
    """
    stops = _checked_stops(stop)
    if session.batch_size != 1:
        raise ValueError(f"the session has {session.batch_size} rows: text is generated in a session of 1 row")
    if session.model.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"the model has {session.model.vocab_size} ids and the tokenizer {tokenizer.vocab_size}: "
            "they must come from the same run"
        )
    ids = opening_ids(session, tokenizer, prompt)
    drawn = session.generate(
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
    )
    session.feed(torch.tensor([ids], dtype=torch.int64))
    return _pieces(drawn, tokenizer, [] if ids == [tokenizer.separator_id] else ids, stops)


def opening_ids(session: Session, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """What is fed for a prompt: its ids; where it has none and the session is new, the separator if there is one."""
    ids = tokenizer.encode(prompt)
    if ids or bool(session.ages[0] > 0) or tokenizer.separator_id is None:
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


def _pieces(drawn: Iterator[Tensor], tokenizer: Tokenizer, said: list[int], stops: list[str]) -> Iterator[str]:
    """The text of the drawn ids; those said before pass the decoder first, so that spaces between words are right."""
    decoder, gate = tokenizer.stream_decoder(), StopText(stops)
    for token in said:
        decoder.push(token)
    for ids in drawn:
        if shown := gate.push(decoder.push(int(ids[0]))):
            yield shown
        if gate.ended:
            return
    if shown := gate.push(decoder.flush()) + gate.flush():
        yield shown


def _checked_stops(stop: str | Sequence[str]) -> list[str]:
    """Stop strings as a list; one string stands for itself."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if any(not isinstance(one, str) or not one for one in stops):
        raise ValueError(f"stop is {stops}: must be strings of at least one character")
    return stops
