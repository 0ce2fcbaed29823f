"""Accuracy by distance of models whose memory is known: one that reads by hand, and one that guesses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.evaluation.fakes import Fake
from txl.data.recall import recall_text
from txl.evaluation import fresh
from txl.evaluation import probe as probing
from txl.evaluation.probe import Probed, probe


class Remembering(Fake):
    """Answers with what followed the latest earlier place that looks like this one, if its window still holds it."""

    def read(self, seen: list[int]) -> float:
        text = bytes(seen)
        if text[-2:-1] == b"?":
            at = text.rfind(b"=" + text[-1:])
            return float(text[at + 2]) if at >= 0 else ord(".")
        at = text.rfind(text[-1:], 0, len(text) - 1)
        return float(text[at + 1]) if at >= 0 else ord(".")

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(hidden[..., 0].long(), self.vocab_size).double()

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return torch.zeros(targets.shape)


def texts(count: int, size: int = 1200) -> list:
    made = (recall_text(size, seed) for seed in range(count))
    return [(np.frombuffer(text, np.uint8), answers) for text, answers in made]


@pytest.mark.parametrize("kind", ["window", "slide"])
def test_a_window_is_right_as_far_as_it_sees_and_not_one_token_further(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "WINDOW_TOKENS", 300)
    monkeypatch.setattr(probing, "SEGMENT_TOKENS", 100)
    given = texts(3)
    answers = [answer for _, some in given for answer in some]
    for window in (10, 40, 200):
        found = probe(Remembering(128, kind), given, window=window)
        for p in found:
            mine = [a for a in answers if a.task == p.task and p.distance <= a.distance < 2 * p.distance]
            # The input before the answer sees `window` tokens before itself. A value needs its key's mark, two before
            # it, a letter the one before it: tokens distance + 2 - 1 and distance + 1 - 1 before that input.
            needs = {"recall": 1, "copy": 0}[p.task]
            assert p.answers == len(mine)
            assert p.right == sum(a.distance + needs <= window for a in mine)
        assert sum(p.answers for p in found) == len(answers)


def test_accuracy_is_a_share_and_progress_ends() -> None:
    assert Probed("copy", 8, 3, 4).accuracy == 0.75
    told: list[tuple[int, int]] = []
    probe(Remembering(128), texts(2, 400), window=9, progress=lambda *now: told.append(now))
    assert told[-1] == (400, 400)
