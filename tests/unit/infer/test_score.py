"""Scores of text by token, line, sentence and document, against a model computed by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from tests.unit.infer.fake import FakeModel
from txl import Session, TokenizerConfig
from txl.data import Tokenizer, train_tokenizer
from txl.infer import spans
from txl.infer.score import Scorer
from txl.infer.spans import Cutter, Unit

TEXT = "The naïve boats ran. A grey bridge!\nNobody counted; the café did\n\nSo: 🙂 boats. End"


def byte_text() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="byte"), [], separator=None)


def scorer(unit: Unit = "line", tokenizer: Tokenizer | None = None, **options: Any) -> tuple[Any, Scorer]:
    tokenizer = tokenizer or byte_text()
    model: Any = FakeModel(vocab=tokenizer.vocab_size, window=5).eval()
    return model, Scorer(Session(model), tokenizer, unit=unit, **options)


def run(scored: Scorer, raw: bytes, *, eager: bool = True, pattern: str | None = None, portion: int = 11) -> list[Any]:
    """All that is scored of a text that comes in portions."""
    cutter, found = Cutter(scored.unit, pattern), []
    for at in range(0, len(raw), portion):
        cutter.push(raw[at : at + portion])
        for block in cutter.blocks(eager=eager):
            found += scored.score(block)
    for block in cutter.finish():
        found += scored.score(block)
    return found + scored.end()


def by_hand(model: Any, ids: list[int], *, document_starts: tuple[int, ...] = ()) -> list[float]:
    """Nats of every id, NaN for the first, a document's first one by the context before it."""
    found = [math.nan]
    start = 0
    for t in range(1, len(ids)):
        found.append(-float(model.log_probs_after(ids[start:t])[ids[t]]))
        start = t if t in document_starts else start
    return found


@pytest.mark.parametrize("unit", ["line", "sentence", "document"])
def test_units_sum_the_nats_of_their_bytes_in_running_memory(unit: Unit) -> None:
    model, scored = scorer(unit)
    raw = TEXT.encode()
    nats = by_hand(model, list(raw))
    found = run(scored, raw)
    expected = [0, len(raw)]
    if unit == "sentence":
        expected = [0, len("The naïve boats ran.".encode()), raw.index(b"!\n") + 2, 68, raw.index(b" End"), len(raw)]
    if unit == "line":
        expected = [0, *(at + 1 for at, byte in enumerate(raw) if byte == 10), len(raw)]
    assert [one.offset for one in found] == expected[:-1]
    for one, start, stop in zip(found, expected, expected[1:], strict=False):
        assert one.size == stop - start
        assert one.sums.nats == pytest.approx(math.fsum(n for n in nats[start:stop] if n == n), abs=1e-9)
        assert one.sums.tokens == one.sums.bytes == stop - start - (start == 0)
        assert one.sums.bits == pytest.approx(one.sums.nats / math.log(2))
        assert one.sums.bits_per_token == one.sums.bits_per_byte == pytest.approx(one.sums.bits / one.sums.tokens)
        assert one.text == raw[start:stop].decode().rstrip("\n")
        assert one.line == 1 + raw[:start].count(b"\n")
    assert scored.totals.nats == pytest.approx(math.fsum(nats[1:]), abs=1e-9)
    assert scored.totals.perplexity == pytest.approx(math.exp(scored.totals.nats / (len(raw) - 1)))


def test_tokens_have_their_nats_places_and_text() -> None:
    model, scored = scorer("token")
    raw = TEXT.encode()
    found = run(scored, raw)
    nats = by_hand(model, list(raw))
    assert [one.token for one in found] == list(raw)
    assert [one.offset for one in found] == list(range(len(raw)))
    assert found[0].sums.bits is None
    assert [one.sums.nats for one in found[1:]] == pytest.approx(nats[1:], abs=1e-9)
    assert "".join(one.text for one in found) == TEXT


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_every_tokenizer_gives_places_in_bytes_and_counts_what_it_does_not_know(kind: Any) -> None:
    trained = "The naïve boats ran . A grey bridge ! Nobody counted ; the café did\n\nSo : boats . End\n" * 30
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=300), [trained], separator=None)
    text = "The naïve  boats 🙂\tran .\nthe café did\n"
    model, scored = scorer("token", tokenizer)
    found = run(scored, text.encode())
    assert [one.token for one in found] == tokenizer.encode(text)
    pieces = [text.encode()[one.offset : (one.offset or 0) + (one.size or 0)] for one in found]
    words = ["The", "naïve", "boats", "🙂", "ran", ".", "\n", "the", "café", "did", "\n"]
    if kind == "bpe":
        assert b"".join(pieces) == text.encode()
        assert max(map(len, pieces)) > 1
    else:
        assert pieces == [piece.encode() for piece in (words if kind == "word" else text)]
    nats = by_hand(model, tokenizer.encode(text))
    model, lines = scorer("line", tokenizer)
    first, second = run(lines, text.encode())
    n_first = len(tokenizer.encode(text.split("\n")[0] + "\n"))
    assert first.sums.nats == pytest.approx(math.fsum(nats[1:n_first]), abs=1e-9)
    assert second.sums.nats == pytest.approx(math.fsum(nats[n_first:]), abs=1e-9)
    assert (first.sums.unknowns, second.sums.unknowns) == {"bpe": (0, 0), "word": (1, 0), "char": (2, 0)}[kind]
    assert second.sums.bytes == second.size


def test_a_document_starts_anew_and_its_first_token_is_scored_by_the_old_one() -> None:
    model, scored = scorer("document")
    parts = [b"= one =\nbody of it\n", b"= two =\nmore\nof it\n", b"= three =\n"]
    found = run(scored, b"".join(parts), pattern="= ")
    nats = by_hand(model, list(b"".join(parts)), document_starts=(19, 19 + 19))
    assert [one.size for one in found] == [len(part) for part in parts]
    bounds = [0, 19, 38, 48]
    for one, start, stop in zip(found, bounds, bounds[1:], strict=False):
        assert one.sums.nats == pytest.approx(math.fsum(n for n in nats[start:stop] if n == n), abs=1e-9)
    again = run(scored, parts[0])  # the next file
    assert again[0].sums.nats == pytest.approx(found[0].sums.nats, abs=1e-9)


@pytest.mark.parametrize("unit", ["line", "sentence", "token"])
def test_isolated_lines_score_as_alone_in_any_order(unit: Unit) -> None:
    lines = ["one grey bridge.\n", "the café\n", "\n", "x" * 50 + " y\n", "A. B. C\n"]
    model, _ = scorer()
    for order in ([0, 1, 2, 3, 4], [4, 3, 0, 2, 1]):
        _, scored = scorer(unit, isolate=True)
        found = run(scored, "".join(lines[i] for i in order).encode())
        if unit == "line":
            for one, i in zip(found, order, strict=True):
                expected = by_hand(model, list(lines[i].encode()))[1:]
                assert one.sums.nats == pytest.approx(math.fsum(expected), abs=1e-9)
                assert one.sums.tokens == len(expected)
        if unit == "token":
            expected = [n for i in order for n in by_hand(model, list(lines[i].encode()))]
            assert [one.sums.nats if one.sums.tokens else math.nan for one in found] == pytest.approx(
                expected, abs=1e-9, nan_ok=True
            )
    _, scored = scorer("sentence", isolate=True)
    first, *_ = run(scored, b"A b. C d.\n")
    second = run(scored, b"C d.\n")[0]
    assert (first.sums.tokens, second.sums.tokens) == (3, 4)


def test_a_long_isolated_line_is_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "BLOCK_BYTES", 16)
    model, scored = scorer("line", isolate=True)
    raw = b"a long line that is cut into several parts\nend\n"
    first, second = run(scored, raw)
    assert first.sums.nats == pytest.approx(math.fsum(by_hand(model, list(raw[:43]))[1:]), abs=1e-9)
    assert second.sums.nats == pytest.approx(math.fsum(by_hand(model, list(b"end\n"))[1:]), abs=1e-9)


def test_bytes_that_are_no_text_are_scored_as_they_are_or_counted() -> None:
    raw = b"caf\xe9 \xff\xfe bar\n\xe4\xb8"
    model, scored = scorer("line")
    found = run(scored, raw)
    assert scored.totals.nats == pytest.approx(math.fsum(by_hand(model, list(raw))[1:]), abs=1e-9)
    assert (scored.totals.replaced, found[0].text) == (0, "caf\ufffd \ufffd\ufffd bar")
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=260), ["café bar\n" * 9], separator=None)
    model, scored = scorer("line", tokenizer)
    run(scored, raw + "\ufffd\n".encode())
    ids = tokenizer.encode(raw[:12].decode("utf-8", "replace")) + tokenizer.encode("\ufffd\ufffd\n")
    assert scored.totals.replaced == 4
    assert scored.totals.nats == pytest.approx(math.fsum(by_hand(model, ids)[1:]), abs=1e-9)


def test_a_long_text_is_kept_in_part_and_said_so() -> None:
    _, scored = scorer("document")
    (one,) = run(scored, "é".encode() * 3000, portion=997)
    assert one.text == "é" * 500 + "…"
    assert one.size == 6000


@pytest.mark.parametrize("unit", ["line", "sentence", "document"])
def test_a_stopped_scorer_goes_on_exactly(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "BLOCK_BYTES", 32)
    raw = (TEXT + "\n" + "z" * 70 + "\n= doc =\n" + TEXT).encode() * 2
    _, whole = scorer(unit)
    expected = run(whole, raw, pattern="= ", eager=False)
    _, first = scorer(unit)
    cutter, found, stops = Cutter(unit, "= "), [], 0
    cutter.push(raw)
    for block in cutter.blocks(eager=False):
        found += first.score(block)
        _, second = scorer(unit)
        second.session.load_state_dict(first.session.state_dict())
        second.load_state(json.loads(json.dumps(first.state())))
        first, stops = second, stops + 1
    for block in cutter.finish():
        found += first.score(block)
    found += first.end()
    assert stops > 5
    assert found == expected
    assert first.totals == whole.totals


def test_a_document_that_begins_without_a_token_begins_with_the_next_one() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), ["= a b\n" * 9], separator=None)
    model, scored = scorer("line", tokenizer)
    spans_of = [(b"a b\n", 0, True, True, False), (b" ", 4, True, False, True), (b"\n", 5, False, True, False)]
    first, second = scored.score([spans.Span(raw, 1, offset, *rest) for raw, offset, *rest in spans_of])
    nats = by_hand(model, tokenizer.encode("a b\n\n"))
    assert first.sums.nats == pytest.approx(nats[1] + nats[2], abs=1e-9)
    assert second.sums.nats == pytest.approx(nats[3], abs=1e-9)
    assert second.raw == b" \n"
    assert scored.session.ages.tolist() == [1]


def test_model_and_tokenizer_must_fit() -> None:
    model: Any = FakeModel(vocab=97)
    with pytest.raises(ValueError, match="the model has 97 ids and the tokenizer 256"):
        Scorer(Session(model), byte_text(), unit="line")
    assert torch.is_grad_enabled()
