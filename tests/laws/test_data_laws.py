"""Laws 14 and 16: the streams are the corpus, and a loader is honest about length, position and what it handed out.

Sizes drawn by hypothesis -> streams put back together. The reference is the token array itself, whose ids are all
different, so that a token served twice, dropped or moved cannot hide.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from txl.data import DataError, SegmentBatch, Streams
from txl.data.mixing import Share

AS_THE_TEXT_GOES_ON = st.just(False)


@st.composite
def layouts(draw: st.DrawFn, shuffle_segments: st.SearchStrategy[bool] = AS_THE_TEXT_GOES_ON) -> dict[str, Any]:
    """A corpus of 2 to 90 tokens in documents, cut into streams and segments of any size, for one or more ranks."""
    world = draw(st.integers(1, 3))
    per_rank = draw(st.integers(1, 5))
    tokens = draw(st.integers(world * per_rank + 1, 90))
    heads = draw(st.sets(st.integers(1, tokens - 1), max_size=12))
    return {
        "ids": np.random.default_rng(tokens).permutation(np.arange(1000, 1000 + tokens, dtype=np.uint16)),
        "document_starts": np.array([0, *sorted(heads)]),
        "batch_size": world * per_rank,
        "world": world,
        "tgt_len": draw(st.integers(1, 25)),
        "reset_memory": draw(st.booleans()),
        "shuffle_documents": draw(st.booleans()),
        "shuffle_segments": draw(shuffle_segments),
        "segments_together": draw(st.integers(1, 4)),
        "seed": draw(st.integers(0, 50)),
    }


def all_ranks(layout: dict[str, Any]) -> list[Streams]:
    return [Streams(**layout, rank=rank) for rank in range(layout["world"])]


def next_of_all(streams: list[Streams]) -> SegmentBatch:
    """The global batch: the ranks' rows under each other."""
    parts = [next(stream) for stream in streams]
    return SegmentBatch(
        torch.cat([part.inputs for part in parts]),
        torch.cat([part.targets for part in parts]),
        torch.cat([part.resets for part in parts]),
    )


def epoch_rows(streams: list[Streams]) -> tuple[list[list[int]], list[list[int]], list[list[bool]]]:
    """Inputs, targets and resets of each stream over one epoch, the padded slots left out."""
    batches = [next_of_all(streams) for _ in range(len(streams[0]))]
    inputs, targets, resets = (
        torch.cat([getattr(batch, name) for batch in batches], dim=1) for name in ("inputs", "targets", "resets")
    )
    there = targets != -100
    assert (~there).sum(1).max() <= 1
    assert (inputs[~there] == 0).all()
    assert not resets[~there].any()
    assert there[:, :-1].all()
    rows = range(len(inputs))
    return (
        [inputs[row][there[row]].tolist() for row in rows],
        [targets[row][there[row]].tolist() for row in rows],
        [resets[row][there[row]].tolist() for row in rows],
    )


@settings(deadline=None, max_examples=150)
@given(layouts())
def test_law_14_all_streams_of_all_ranks_together_are_the_corpus_each_token_and_each_target_once(
    layout: dict[str, Any],
) -> None:
    ids, starts = layout["ids"].tolist(), layout["document_starts"].tolist()
    documents = [tuple(ids[a:b]) for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)]
    streams = all_ranks(layout)
    for _ in range(3):
        inputs, targets, resets = epoch_rows(streams)
        served = list(chain(*inputs)) + targets[-1][-1:]
        if not layout["shuffle_documents"]:
            assert served == ids
        order = sorted(documents, key=lambda document: served.index(document[0]))
        assert served == [token for document in order for token in document]
        # Each target is the token after its input, inside a segment, across segments and across streams.
        assert list(chain(*targets)) == served[1:]
        lengths = [len(row) for row in inputs]
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)
        heads = {document[0] for document in documents}
        for row, reset in zip(inputs, resets, strict=True):
            expected = [layout["reset_memory"] and token in heads for token in row]
            assert reset == [True, *expected[1:]]


@settings(deadline=None, max_examples=60)
@given(layouts(), st.integers(1, 3))
def test_law_14_rows_do_not_depend_on_the_number_of_ranks(layout: dict[str, Any], epochs: int) -> None:
    alone, together = [Streams(**(layout | {"world": 1}))], all_ranks(layout)
    for _ in range(epochs):
        assert epoch_rows(alone) == epoch_rows(together)


@settings(deadline=None, max_examples=60)
@given(layouts())
def test_law_14_epochs_are_shuffled_anew_but_the_same_for_the_same_seed(layout: dict[str, Any]) -> None:
    first = [epoch_rows(all_ranks(layout))[0] for _ in range(2)]
    assert first[0] == first[1]
    streams = all_ranks(layout)
    epochs = [epoch_rows(streams)[0] for _ in range(8)]
    if not layout["shuffle_documents"]:
        assert all(epoch == epochs[0] for epoch in epochs)
    elif len(layout["document_starts"]) > 5:
        assert any(epoch != epochs[0] for epoch in epochs)


def segments_of_rows(batch: SegmentBatch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Inputs and targets of each row, the padded slots left out."""
    rows = zip(batch.inputs, batch.targets, strict=True)
    return [
        (tuple(inputs[there].tolist()), tuple(targets[there].tolist()))
        for inputs, targets in rows
        for there in [targets != -100]
    ]


@settings(deadline=None, max_examples=100)
@given(layouts(st.just(True)))
def test_law_14_shuffled_chunks_are_those_of_the_text_each_once_an_epoch_and_each_from_a_fresh_start(
    layout: dict[str, Any],
) -> None:
    layout |= {"shuffle_documents": False, "reset_memory": False}
    plain, together = Streams(**layout | {"shuffle_segments": False, "world": 1}), layout["segments_together"]
    whole = [segments_of_rows(next(plain)) for _ in range(len(plain))]
    heads = {row[0][0] for at in range(0, len(whole), together) for row in whole[at] if row[0]}
    wanted = sorted(row for rows in whole for row in rows if row[0])
    neighbours = [pair for rows in pairwise(whole) for pair in zip(*rows, strict=True)]
    before = {after[0]: inputs[-1] for (inputs, _), (after, _) in neighbours if after}
    streams = all_ranks(layout)
    alone = Streams(**layout | {"world": 1})
    orders = set()
    for _ in range(6):
        assert sum(one.targets for one in streams) == alone.targets == len(layout["ids"]) - 1
        batches = [next_of_all(streams) for _ in range(len(alone))]
        rows = [segments_of_rows(batch) for batch in batches]
        served = [row for batch in rows for row in batch if row[0]]
        assert sorted(served) == wanted
        assert all(any(row[0] for row in batch) for batch in rows)  # no step without a target
        latest = [0] * len(rows[0])
        for batch, there in zip(batches, rows, strict=True):
            assert torch.equal(batch.inputs, next(alone).inputs)
            assert (batch.inputs[batch.targets == -100] == 0).all()
            assert not batch.resets[:, 1:].any()
            for row, (inputs, _) in enumerate(there):
                if inputs:
                    assert bool(batch.resets[row, 0]) == (inputs[0] in heads)
                    assert inputs[0] in heads or latest[row] == before[inputs[0]]  # memory is of the text right before
                    latest[row] = inputs[-1]
        orders.add(tuple(served))
    if len(wanted) > 6:
        assert len(orders) > 1


@settings(deadline=None, max_examples=60)
@given(layouts(st.booleans()))
def test_law_16_len_is_what_comes(layout: dict[str, Any]) -> None:
    stream = Streams(**layout)
    for epoch in range(3):  # of shuffled chunks one may be a few segments longer than the next
        promised, count = len(stream), 0
        while stream.position()["epoch"] == epoch:
            assert next(stream).inputs.shape[1] <= layout["tgt_len"]
            count += 1
        assert count == promised


@settings(deadline=None, max_examples=80)
@given(layouts(st.booleans()), st.data())
def test_law_16_seek_of_position_goes_on_identically_at_an_epochs_end_too(layout: dict[str, Any], data: Any) -> None:
    stream = Streams(**layout)
    ends = [0, 1, len(stream) - 1, len(stream), len(stream) + 1, 2 * len(stream)]
    for _ in range(data.draw(st.sampled_from(ends))):
        next(stream)
    position = stream.position()
    assert position == stream.position()  # asking moves nothing
    resumed = Streams(**layout)
    for _ in range(data.draw(st.integers(0, 3))):
        next(resumed)  # a stream that has been used may be sent back
    resumed.seek(position)
    assert resumed.position() == position
    for _ in range(len(stream) + 2):
        one, other = next(stream), next(resumed)
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.resets, other.resets)
        assert stream.position() == resumed.position()


@settings(deadline=None, max_examples=40)
@given(layouts(st.booleans()))
def test_law_16_what_was_yielded_is_never_overwritten(layout: dict[str, Any]) -> None:
    original = layout["ids"].copy()
    stream = Streams(**layout)
    held, copies = [], []
    for _ in range(2 * len(stream) + 1):
        batch = next(stream)
        held.append(batch)
        copies.append((batch.inputs.clone(), batch.targets.clone(), batch.resets.clone()))
    for batch, (inputs, targets, resets) in zip(held, copies, strict=True):
        assert torch.equal(batch.inputs, inputs)
        assert torch.equal(batch.targets, targets)
        assert torch.equal(batch.resets, resets)
        batch.inputs.fill_(7)
        batch.targets.fill_(8)
        batch.resets.fill_(True)
    assert np.array_equal(layout["ids"], original)  # nor does writing to a batch reach the corpus
    stream.seek({"epoch": 0, "token": 0})
    assert torch.equal(next(stream).inputs, copies[0][0])


@settings(deadline=None, max_examples=80)
@given(layouts(), st.data())
def test_law_14_a_mixture_reads_whole_documents_by_weight_none_twice_before_all_others_of_its_source(
    layout: dict[str, Any], data: Any
) -> None:
    ids, starts = layout["ids"].tolist(), layout["document_starts"].tolist()
    documents = [tuple(ids[a:b]) for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)]
    later = data.draw(st.sets(st.integers(1, len(documents)), max_size=2))
    firsts = [0, *sorted(first for first in later if first < len(documents))]
    shares = [Share(first, data.draw(st.sampled_from([1.0, 2.0, 0.7]))) for first in firsts]
    mixed = layout | {"mixture": shares, "batch_size": layout["world"]}
    try:
        streams = all_ranks(mixed)
        epochs = [epoch_rows(streams) for _ in range(6)]
    except DataError:  # documents so long that an epoch has fewer tokens than streams
        assume(False)
    heads = {document[0]: number for number, document in enumerate(documents)}
    reads: list[int] = []
    for inputs, targets, _ in epochs:
        served = list(chain(*inputs)) + targets[-1][-1:]
        assert list(chain(*targets)) == served[1:]
        order = [heads[token] for token in served if token in heads]
        assert served == [token for number in order for token in documents[number]]
        reads += order
    for share, stop in zip(shares, [*firsts[1:], len(documents)], strict=True):
        own = range(share.first_document, stop)
        counts = [reads.count(number) for number in own]
        assert max(counts) - min(counts) <= 1
        tokens = sum(len(documents[number]) for number in reads if number in own)
        wanted = 6 * len(ids) * share.weight / sum(share.weight for share in shares)
        assert abs(tokens - wanted) <= max(len(documents[number]) for number in own) + 6  # rounded to whole documents
    epoch, resumed = data.draw(st.integers(0, 5)), all_ranks(mixed)
    for stream in resumed:
        stream.seek({"epoch": epoch, "token": 0})
    assert epoch_rows(resumed) == epochs[epoch]
