"""Beam search: a session that has read a prompt in, the most probable continuations out, best first.

Each unfinished continuation is a row of a fork, whose memory is reordered with the rows that live on; the session
given is left alone. Knows nothing of text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from txl.infer.checks import checked_stop
from txl.infer.session import Session


@dataclass(frozen=True)
class Hypothesis:
    """A continuation: its ids, the stop that ended it included, and the sum of their log-probabilities in nats."""

    ids: tuple[int, ...]
    log_prob: float

    def score(self, length_penalty: float) -> float:
        """What it is ranked by: log_prob / (number of ids)^length_penalty."""
        return self.log_prob / len(self.ids) ** length_penalty


def beam_search(
    session: Session,
    max_new_tokens: int,
    *,
    beams: int = 4,
    length_penalty: float = 1.0,
    stop: Iterable[Sequence[int]] = (),
) -> list[Hypothesis]:
    """The best continuations found of a session of one row, at most `beams`, by falling score.

    At each step the `beams` most probable unfinished extensions by one token go on; one is finished when it ends with
    a stop (lists of ids, all of them new) or has max_new_tokens ids. With length_penalty 0 the most probable text
    wins, usually a short one; 1 compares means a token (Wu et al. 2016, section 7, have another formula for the same
    purpose). The search ends when nothing unfinished can reach the `beams` best finished ones; with as many beams as
    there are unfinished texts it is exhaustive.
    Raises ValueError if an argument is out of range or the session has read nothing.
    """
    stops = checked_stop(stop, vocab_size=session.model.vocab_size)
    _check(session, max_new_tokens, beams, length_penalty)
    done: list[Hypothesis] = []
    alive, texts = session.fork(), [Hypothesis((), 0.0)]
    while True:
        ended, going = [], []
        for row, text in _extensions(alive, texts, beams * (1 + len(stops))):
            if len(text.ids) == max_new_tokens or any(list(text.ids[-len(one) :]) == one for one in stops):
                ended.append(text)
            else:
                going.append((row, text))
        done = sorted(done + ended, key=lambda text: text.score(length_penalty), reverse=True)[:beams]
        # A sum only falls, so no text can end with a score above that of its sum at full length.
        least = done[-1].score(length_penalty) if len(done) == beams else -math.inf
        going = [pair for pair in going[:beams] if pair[1].log_prob / max_new_tokens**length_penalty > least]
        if not going:
            return done
        alive, texts = alive.fork(rows=[row for row, _ in going]), [text for _, text in going]
        alive.read(torch.tensor([[text.ids[-1]] for text in texts]))


def _extensions(alive: Session, texts: list[Hypothesis], count: int) -> list[tuple[int, Hypothesis]]:
    """The `count` most probable texts that are one of the given and one more id, with the row they come from."""
    before = torch.tensor([text.log_prob for text in texts], dtype=torch.float64)
    totals = before[:, None] + alive.log_probs().to(device="cpu", dtype=torch.float64)
    found, places = totals.flatten().topk(min(count, totals.numel()))
    extended = []
    for total, place in zip(found.tolist(), places.tolist(), strict=True):
        row, token = divmod(place, alive.model.vocab_size)
        extended.append((row, Hypothesis((*texts[row].ids, token), total)))
    return extended


def _check(session: Session, max_new_tokens: int, beams: int, length_penalty: float) -> None:
    """Raise ValueError for what beam search cannot do."""
    if session.batch_size != 1:
        raise ValueError(f"the session has {session.batch_size} rows: beam search continues one text")
    if int(session.ages[0]) == 0:
        raise ValueError("the session has read nothing: beam search needs a text to go on from")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: must be at least 1 for beam search")
    if beams < 1:
        raise ValueError(f"beams is {beams}: must be at least 1")
    if not 0 <= length_penalty < math.inf:
        raise ValueError(f"length_penalty is {length_penalty}: must be at least 0; 1 compares means a token")
