"""Streams against tables written out by hand, and every refusal by its message.

Ids and document starts -> segments. The laws (each token once, seek, nothing overwritten) are in tests/laws.
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pytest
import torch

from txl.data import DataError, SegmentBatch, Streams


def streams(tokens: int = 12, starts: tuple[int, ...] = (0,), **settings: object) -> Streams:
    chosen = {"batch_size": 3, "tgt_len": 2} | settings
    return Streams(np.arange(100, 100 + tokens, dtype=np.uint8), np.array(starts), **chosen)  # type: ignore[arg-type]


def test_the_table_of_the_docstring() -> None:
    made = streams()
    first, second, again = next(made), next(made), next(made)
    assert first.inputs.tolist() == [[100, 101], [104, 105], [108, 109]]
    assert first.targets.tolist() == [[101, 102], [105, 106], [109, 110]]
    assert first.resets.tolist() == [[True, False]] * 3
    assert second.inputs.tolist() == [[102, 103], [106, 107], [110, 0]]
    assert second.targets.tolist() == [[103, 104], [107, 108], [111, -100]]
    assert second.resets.tolist() == [[False, False]] * 3
    assert torch.equal(again.inputs, first.inputs)
    assert torch.equal(again.resets, first.resets)
    assert len(made) == 2


def test_types_and_the_shorter_last_segment() -> None:
    made = streams(tokens=17, batch_size=2, tgt_len=5)  # 16 pairs, 8 a stream: segments of 5 and 3
    shapes = [tuple(next(made).inputs.shape) for _ in range(3)]
    assert shapes == [(2, 5), (2, 3), (2, 5)]
    batch = next(made)
    assert isinstance(batch, SegmentBatch)
    assert (batch.inputs.dtype, batch.targets.dtype, batch.resets.dtype) == (torch.int64, torch.int64, torch.bool)


def test_one_pair_a_stream_is_enough() -> None:
    made = streams(tokens=4, batch_size=3, tgt_len=64)
    batch = next(made)
    assert batch.inputs.tolist() == [[100], [101], [102]]
    assert batch.targets.tolist() == [[101], [102], [103]]
    assert len(made) == 1


def test_ranks_own_rows() -> None:
    whole = streams(tokens=30, batch_size=6, tgt_len=3)
    parts = [streams(tokens=30, batch_size=6, tgt_len=3, rank=rank, world=3) for rank in range(3)]
    for _ in range(5):
        batch, pieces = next(whole), [next(part) for part in parts]
        assert torch.equal(batch.inputs, torch.cat([piece.inputs for piece in pieces]))
        assert torch.equal(batch.targets, torch.cat([piece.targets for piece in pieces]))
        assert torch.equal(batch.resets, torch.cat([piece.resets for piece in pieces]))


def test_resets_stand_at_document_starts_and_at_the_epoch() -> None:
    made = streams(tokens=13, starts=(0, 3, 4, 9), batch_size=2, tgt_len=4, reset_memory=True)
    first, second = next(made), next(made)
    assert first.inputs.tolist() == [[100, 101, 102, 103], [106, 107, 108, 109]]
    assert first.resets.tolist() == [[True, False, False, True], [True, False, False, True]]
    assert second.inputs.tolist() == [[104, 105], [110, 111]]
    assert second.resets.tolist() == [[True, False], [False, False]]
    without = streams(tokens=13, starts=(0, 3, 4, 9), batch_size=2, tgt_len=4)
    assert [int(next(without).resets.sum()) for _ in range(2)] == [2, 0]


def test_the_padded_slot_is_no_reset_and_no_target() -> None:
    made = streams(tokens=6, starts=(0, 1, 2, 3, 4, 5), batch_size=2, tgt_len=9, reset_memory=True)
    batch = next(made)  # pairs 0 1 2 | 3 4 -
    assert batch.inputs.tolist() == [[100, 101, 102], [103, 104, 0]]
    assert batch.targets.tolist() == [[101, 102, 103], [104, 105, -100]]
    assert batch.resets.tolist() == [[True, True, True], [True, True, False]]


def test_shuffled_documents_stay_whole_with_their_resets() -> None:
    starts = (0, 2, 5, 6, 11)
    made = streams(
        tokens=15, starts=starts, batch_size=1, tgt_len=20, reset_memory=True, shuffle_documents=True, seed=2
    )
    orders = set()
    for _ in range(20):
        batch = next(made)
        inputs = batch.inputs[0].tolist()
        heads = [inputs[i] - 100 for i in batch.resets[0].nonzero().flatten().tolist()]
        tail = batch.targets[0, -1].item() - 100
        assert set(heads) | ({tail} & set(starts)) == set(starts)
        orders.add(tuple(heads))
    assert len(orders) > 5


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone() -> None:
    starts = tuple(range(0, 40, 4))
    settings = {"tokens": 40, "starts": starts, "shuffle_documents": True}
    one = streams(batch_size=1, tgt_len=39, seed=5, **settings)
    many = streams(batch_size=3, tgt_len=2, seed=5, **settings)
    for epoch in range(3):
        whole = next(one).inputs[0].tolist()
        many.seek({"epoch": epoch, "token": 0})
        parts = [next(many).inputs for _ in range(len(many))]
        assert torch.cat(parts, dim=1).flatten().tolist() == whole
    other = streams(batch_size=1, tgt_len=39, seed=6, **settings)
    one.seek({"epoch": 0, "token": 0})
    assert next(other).inputs.tolist() != next(one).inputs.tolist()


def test_the_published_generator_gives_the_order() -> None:
    # PCG64 seeded with [seed, epoch], one 64-bit key a document, sorted: never another order with a newer numpy.
    keys = np.random.Generator(np.random.PCG64([7, 0])).integers(0, 2**64, 4, dtype=np.uint64)
    order = sorted(range(4), key=lambda i: int(keys[i]))
    made = streams(tokens=12, starts=(0, 3, 6, 9), batch_size=1, tgt_len=11, shuffle_documents=True, seed=7)
    batch = next(made)
    served = [*batch.inputs[0].tolist(), int(batch.targets[0, -1])]
    assert served == [100 + 3 * document + i for document in order for i in range(3)]


def test_segments_are_dealt_by_the_published_generator() -> None:
    # 11 pairs in 3 streams of 4, 4 and 3, two segments of 2 each; card c is segment c // 3 of stream c % 3.
    whole = [[100, 101], [104, 105], [108, 109], [102, 103], [106, 107], [110, 0]]
    keys = np.random.Generator(np.random.PCG64([7, 0])).integers(0, 2**64, 6, dtype=np.uint64)
    order = sorted(range(6), key=lambda card: int(keys[card]))
    made = streams(shuffle_segments=True, seed=7)
    first, second = next(made), next(made)
    assert [*first.inputs.tolist(), *second.inputs.tolist()] == [whole[card] for card in order]
    assert int((first.targets == -100).sum() + (second.targets == -100).sum()) == 1
    assert first.resets.tolist() == second.resets.tolist() == [[True, False]] * 3
    assert made.position() == {"epoch": 1, "token": 0}


def test_chunks_of_segments_are_dealt_whole_and_a_deal_lasts_as_long_as_its_longest_chunk() -> None:
    # 17 pairs in 2 streams of 9 and 8, three segments of 3 each: a chunk of two segments and one of what is left.
    chunks = [
        [[100, 101, 102], [103, 104, 105]],
        [[109, 110, 111], [112, 113, 114]],
        [[106, 107, 108]],
        [[115, 116, 0]],
    ]
    empty = [0, 0, 0]
    for seed in range(8):
        keys = np.random.Generator(np.random.PCG64([seed, 0])).integers(0, 2**64, 4, dtype=np.uint64)
        order = sorted(range(4), key=lambda card: int(keys[card]))
        made = streams(tokens=18, batch_size=2, tgt_len=3, shuffle_segments=True, segments_together=2, seed=seed)
        expected = []
        for one, other in ((chunks[card] for card in order[:2]), (chunks[card] for card in order[2:])):
            expected += zip_longest(one, other, fillvalue=empty)
        batches = [next(made) for _ in range(len(made))]
        assert made.position() == {"epoch": 1, "token": 0}
        assert [batch.inputs.tolist() for batch in batches] == [list(rows) for rows in expected]
        assert len(batches) in (3, 4)  # with both short chunks in one deal, or one in each


def test_shuffled_segments_go_on_only_where_one_of_them_begins() -> None:
    made = streams(shuffle_segments=True)
    made.seek({"epoch": 0, "token": 2})
    with pytest.raises(DataError, match="it belongs to other data"):
        made.seek({"epoch": 0, "token": 1})
    assert made.position() == {"epoch": 0, "token": 2}


def test_position_counts_tokens_of_each_stream() -> None:
    made = streams(tokens=17, batch_size=2, tgt_len=5)
    seen = []
    for _ in range(4):
        seen.append(made.position())
        next(made)
    assert seen == [
        {"epoch": 0, "token": 0},
        {"epoch": 0, "token": 5},
        {"epoch": 1, "token": 0},
        {"epoch": 1, "token": 5},
    ]


def test_a_position_may_go_on_with_another_segment_length() -> None:
    made = streams(tokens=17, batch_size=2, tgt_len=3)
    made.seek({"epoch": 0, "token": 5})
    assert next(made).inputs.tolist() == [[105, 106, 107], [113, 114, 115]]
    assert made.position() == {"epoch": 1, "token": 0}


@pytest.mark.parametrize(
    "position",
    [
        {"epoch": 0, "token": 4},
        {"epoch": 0, "token": -1},
        {"epoch": -1, "token": 0},
        {"epoch": 0},
        {"epoch": 0, "token": 1.0},
        {"epoch": 0, "token": 1, "row": 2},
    ],
)
def test_positions_of_other_data_are_refused(position: dict[str, int]) -> None:
    with pytest.raises(DataError, match=r"data position \{'epoch'"):
        streams().seek(position)


@pytest.mark.parametrize(
    ("tokens", "batch_size", "world", "message"),
    [
        (8, 20, 1, r"data.batch_size: 20 streams, but the split has only 8 tokens; at most 7 streams fit: set "),
        (8, 8, 1, r"data.batch_size=7 or less"),
        (8, 12, 3, r"at most 6 streams fit: set data.batch_size=6 or less"),
        (3, 6, 3, r"data: 3 tokens in the split, but 4 are needed for one stream on each of 3 processes; give more"),
        (1, 2, 1, r"data: 1 token in the split, but 2 are needed for one stream on each of 1 process; give more text"),
        (30, 5, 2, r"data.batch_size: 5, not divisible by the 2 processes"),
    ],
)
def test_too_little_text_says_the_largest_batch(tokens: int, batch_size: int, world: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        streams(tokens=tokens, batch_size=batch_size, world=world)


def test_the_largest_batch_named_is_accepted() -> None:
    assert next(streams(tokens=8, batch_size=7)).inputs.shape == (7, 1)
    with pytest.raises(DataError):
        streams(tokens=8, batch_size=8)


def test_an_id_outside_the_vocabulary_is_refused_where_it_is_served() -> None:
    made = streams(tokens=12, vocab_size=111)
    next(made)
    with pytest.raises(DataError, match="token id 111 in the corpus, but the vocabulary has 111 ids"):
        next(made)
    assert next(streams(tokens=12, vocab_size=112)).inputs[0, 0] == 100


@pytest.mark.parametrize("starts", [(), (1,), (0, 5, 5), (0, 12), (0, 7, 3)])
def test_impossible_document_starts_are_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="document_starts"):
        streams(starts=starts)


def test_segments_may_change_their_length_and_each_token_comes_once_an_epoch_all_the_same() -> None:
    made = streams(tokens=34, batch_size=3, tgt_len=2)  # 33 pairs, 11 a stream
    batches = []
    for length in (2, 2, 5, 1, 9, 4):
        made.tgt_len = length
        batches.append(next(made))
    assert [batch.inputs.shape[1] for batch in batches] == [2, 2, 5, 1, 1, 4]  # the fifth ends the epoch
    epoch = torch.cat([batch.inputs for batch in batches[:5]], dim=1)
    assert torch.equal(epoch.flatten(), torch.arange(100, 133))
    assert torch.equal(torch.cat([batch.targets for batch in batches[:5]], dim=1).flatten(), torch.arange(101, 134))
    assert [bool(batch.resets.any()) for batch in batches] == [True, False, False, False, False, True]
    assert len(made) == 3  # of four tokens
    assert made.position() == {"epoch": 1, "token": 4}
