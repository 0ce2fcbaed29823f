"""The made-up text: every answer is decided by its evidence and by nothing nearer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from txl.config import Config, apply_overrides
from txl.data import prepare
from txl.data import recall as made
from txl.data.recall import DISTANCES, KEYS, LETTERS, VALUES, recall_text
from txl.data.sources import find_source


@pytest.mark.parametrize("seed", [0, 1, 77])
def test_an_answer_is_the_token_its_distance_before_and_no_nearer_evidence_names_its_key(seed: int) -> None:
    text, answers = recall_text(9000, seed)
    assert len(text) == 9000
    assert len(answers) > 500
    for answer in answers:
        assert text[answer.position] == text[answer.position - answer.distance]
        told = answer.position - answer.distance
        between = text[told + 1 : answer.position]
        if answer.task == "recall":
            key = text[answer.position - 1 : answer.position]
            assert text[answer.position - 2 : answer.position] == b"?" + key
            assert text[told - 2 : told] == b"=" + key
            assert b"=" + key not in between  # the key keeps its value until it is asked for
            assert key in KEYS
            assert text[answer.position : answer.position + 1] in VALUES
        else:
            before = text[answer.position - 1 : answer.position]
            assert text[told - 1 : told] == before
            assert text.rfind(before, 0, answer.position - 1) == told - 1  # so the latest same letter leads to it
            assert text[answer.position : answer.position + 1] in LETTERS


def test_distances_are_those_drawn_or_a_little_more() -> None:
    answers = [answer for seed in range(4) for answer in recall_text(16_384, seed)[1]]
    distances = np.array([answer.distance for answer in answers])
    drawn = np.array(DISTANCES)[np.searchsorted(DISTANCES, distances, side="right") - 1]
    assert (distances >= 8).all()
    assert np.mean(distances - drawn < 8) > 0.95
    assert set(drawn.tolist()) == set(DISTANCES)
    for task in ("recall", "copy"):
        assert sum(answer.task == task for answer in answers) > 2000


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    assert recall_text(500, 3) == recall_text(500, 3)
    assert recall_text(500, 3)[0] != recall_text(500, 4)[0]
    short, long = recall_text(300, 3), recall_text(500, 3)
    assert long[0].startswith(short[0])


def test_recall_is_a_source_of_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "DOCUMENTS", 9)
    monkeypatch.setattr(made, "DOCUMENT_BYTES", 700)
    stamp = find_source("data.train", "recall").stamp
    words = ["data.train=recall", f"data.cache_dir={tmp_path}", "data.valid_fraction=0.2", "data.test_fraction=0.2"]
    corpus = prepare(apply_overrides(Config(), words))
    assert [part.documents for part in (corpus.train, corpus.valid, corpus.test)] == [5, 2, 2]
    assert corpus.train.tokens == 5 * 700
    documents = {recall_text(700, seed)[0] for seed in range(9)}
    assert bytes(corpus.test.ids[:700].tolist()) in documents
    monkeypatch.setattr(made, "DOCUMENTS", 8)
    assert find_source("data.train", "recall").stamp != stamp
