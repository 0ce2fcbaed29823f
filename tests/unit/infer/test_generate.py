"""Text in, text out: starts without a prompt, joins, characters cut between tokens, stop strings anywhere."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.unit.infer.fake import ByteText, FakeModel, ScriptedSession, WordText
from txl import Session, TokenizerConfig
from txl.data import train_tokenizer
from txl.infer.drawing import Drawn
from txl.infer.generate import StopText, generate_text, generate_texts, opening_ids, opening_note
from txl.infer.sampling import Sampling


def pieces(text: str, *, stop: str | Sequence[str] = (), prompt: str = "") -> list[str]:
    """The pieces yielded when the bytes of `text` are what is drawn, one a token."""
    session = ScriptedSession(list(text.encode()), 256)
    return list(generate_text(session, ByteText(), prompt, stop=stop))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "plain", "naïve café — π ≈ 3.14159 🙂🙂", "ends in half a 🙂"])
def test_streamed_text_is_the_decoded_whole_without_half_characters(text: str) -> None:
    shown = pieces(text)
    assert "".join(shown) == text
    assert all(piece and "\ufffd" not in piece for piece in shown)


def test_bytes_that_are_no_text_come_out_as_the_tokenizer_decodes_them() -> None:
    for seed in range(50):
        ids = list(random.Random(seed).randbytes(40)) + [0xF0, 0x9F][: seed % 3]
        session = ScriptedSession(ids, 256)
        shown = "".join(generate_text(session, ByteText()))  # type: ignore[arg-type]
        assert shown == bytes(ids).decode(errors="replace")


def test_words_go_on_with_the_space_that_joins_them_to_the_prompt() -> None:
    words = WordText(["a", "grey", "bridge"])
    session = ScriptedSession([2, 1], 3)
    assert list(generate_text(session, words, "a grey")) == [" bridge", " grey"]  # type: ignore[arg-type]
    assert session.fed == [0, 1]
    assert list(generate_text(ScriptedSession([2, 1], 3), words, "")) == ["bridge", " grey"]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["byte", "char", "word", "bpe"])
def test_prompt_and_streamed_text_are_the_decoded_ids_of_every_kind(kind: str) -> None:
    text = "The naïve boats, 7 of them, ran under a grey bridge;\nthe café 🙂 counted none.\n" * 20
    config = TokenizerConfig(kind=kind, vocab_size=300)  # type: ignore[arg-type]
    tokenizer = train_tokenizer(config, [text], separator=None if kind == "byte" else "<eos>")
    model: Any = FakeModel(vocab=tokenizer.vocab_size).eval()
    prompt = "The naïve"
    for seed in range(5):
        session, twin = Session(model), Session(model)
        shown = list(generate_text(session, tokenizer, prompt, max_new_tokens=60, temperature=2.0, seed=seed))
        twin.feed(torch.tensor([tokenizer.encode(prompt)]))
        drawn = [int(ids) for ids in twin.generate(60, temperature=2.0, seed=seed)]
        assert prompt + "".join(shown) == tokenizer.decode(tokenizer.encode(prompt) + drawn)


def test_a_text_after_a_separator_begins_without_the_separators_traces() -> None:
    config = TokenizerConfig(kind="word")
    tokenizer = train_tokenizer(config, ["grey bridge"], separator="<doc>")
    session: Any = ScriptedSession(tokenizer.encode("grey bridge"), tokenizer.vocab_size)
    assert list(generate_text(session, tokenizer, "")) == ["grey", " bridge"]
    assert session.fed == [tokenizer.separator_id]


# Starts


@pytest.mark.parametrize(
    ("prompt", "separator", "age", "fed", "note"),
    [
        ("ab", False, 0, [97, 98], None),
        ("ab", True, 0, [97, 98], None),
        ("", True, 0, [256], "no prompt: the text starts after a document separator"),
        ("", False, 0, [], "no prompt: the first token is drawn uniformly from the 256 of the vocabulary"),
        ("", True, 4, [], None),
        ("", False, 4, [], None),
    ],
)
def test_nothing_hidden_is_put_before_a_text(
    prompt: str, separator: bool, age: int, fed: list[int], note: str | None
) -> None:
    tokenizer: Any = ByteText(separator=separator)
    session: Any = ScriptedSession([], tokenizer.vocab_size, age=age)
    assert opening_ids(session, tokenizer, prompt) == fed
    assert opening_note(session, tokenizer, prompt) == note
    list(generate_text(session, tokenizer, prompt))
    assert session.fed == fed


def test_the_prompt_is_fed_at_the_call_and_not_yielded() -> None:
    session: Any = ScriptedSession(list(b"xyz"), 256)
    text = generate_text(session, ByteText(), "ab")  # type: ignore[arg-type]
    assert session.fed == [97, 98]
    assert session.taken == 0
    assert next(text) == "x"
    assert session.taken == 1


def test_options_reach_the_session() -> None:
    session: Any = ScriptedSession([], 256)
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "seed": 12,
    }
    generate_text(session, ByteText(), "ab", max_new_tokens=5, **options)  # type: ignore[arg-type]
    assert session.options == {"max_new_tokens": 5, **options}


def test_a_real_session_goes_on_where_its_text_ended() -> None:
    model = FakeModel(vocab=256, window=3).eval()
    once: Any = Session(model)  # type: ignore[arg-type]
    twice: Any = Session(model)  # type: ignore[arg-type]
    tokenizer: Any = ByteText()
    list(generate_text(once, tokenizer, "abcdef", max_new_tokens=3, seed=1))
    list(generate_text(twice, tokenizer, "abc", max_new_tokens=0))
    list(generate_text(twice, tokenizer, "def", max_new_tokens=3, seed=1))
    assert once.ages.tolist() == [9]
    assert torch.equal(once.log_probs(), twice.log_probs())
    text = [list(generate_text(s, tokenizer, max_new_tokens=12, seed=5)) for s in (once, twice)]
    assert text[0] == text[1]


# Several texts side by side


def test_ragged_prompts_in_a_batch_are_written_as_alone() -> None:
    tokenizer: Any = ByteText()
    model: Any = FakeModel(vocab=256, window=3).eval()
    prompts = ["a", "naïve boats and a grey bridge", "", "café"]
    rules = Sampling(temperature=0.9, top_k=40, repetition_penalty=1.3)
    session = Session(model, len(prompts))
    together = list(generate_texts(session, tokenizer, prompts, max_new_tokens=25, sampling=rules, seed=[9, 4, 9, 7]))
    for row, (prompt, seed) in enumerate(zip(prompts, [9, 4, 9, 7], strict=True)):
        alone = Session(model)
        options = {"temperature": 0.9, "top_k": 40, "repetition_penalty": 1.3, "seed": seed}
        text = "".join(generate_text(alone, tokenizer, prompt, max_new_tokens=25, **options))  # type: ignore[arg-type]
        mine = [one for one in together if one.row == row]
        assert "".join(one.text for one in mine) == text
        ids = [one.token for one in mine if one.token is not None]
        whole = tokenizer.encode(prompt) + ids
        nats = model.nats_of(whole)[-25 if prompt else -24 :]
        first = [] if prompt else [-math.log(256)]
        expected = first + [-value for value in nats]
        assert [one.log_prob for one in mine if one.token is not None] == pytest.approx(expected, abs=1e-12)


def test_each_row_ends_at_its_own_stop() -> None:
    rows = [list(b"one. two"), list(b"three 3!"), list(b"four.fi\xc3")]
    drawn = [Drawn(torch.tensor(ids), torch.zeros(3, 256)) for ids in zip(*rows, strict=True)]
    drawn.insert(6, Drawn(torch.tensor([-1, -1, -1]), torch.zeros(3, 256)))  # what a row ended by ids yields
    session: Any = ScriptedSession([], 256)
    session.batch_size, session.ages, session.drawn = 3, torch.zeros(3), drawn
    session.draw = lambda *_, **__: iter(session.drawn)
    texts = ["", "", ""]
    for one in generate_texts(session, ByteText(), ["p", "q", "r"], stop=["."]):  # type: ignore[arg-type]
        texts[one.row] += one.text
    assert texts == ["one", "three ", "four"]


def test_a_row_ends_after_the_ids_it_was_told_to_end_with() -> None:
    model: Any = FakeModel(vocab=256, window=3).eval()
    whole = [list(generate_texts(Session(model, 2), ByteText(), ["ab", "c"], max_new_tokens=9, seed=3))]  # type: ignore[arg-type]
    tokens = [[one.token for one in whole[0] if one.row == row and one.token is not None] for row in (0, 1)]
    stop = tokens[0][2:4]
    session = Session(model, 2)
    short = list(generate_texts(session, ByteText(), ["ab", "c"], max_new_tokens=9, seed=3, stop_ids=[stop]))  # type: ignore[arg-type, list-item]
    assert [one.token for one in short if one.row == 0 and one.token is not None] == tokens[0][:4]
    assert [one.token for one in short if one.row == 1 and one.token is not None] == tokens[1]
    assert session.ages.tolist() == [2 + 4, 1 + 9]


# Stop strings


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("one\ntwo\n", "\n", "one"),
        ("one\n\ntwo", ["\n\n"], "one"),
        ("one\ntwo", ["\n\n"], "one\ntwo"),
        ("ends in a beginning END", ["ENDE"], "ends in a beginning END"),
        ("aaab", ["aab"], "a"),
        ("xabcd", ["abcd", "bc"], "xa"),  # bc is complete first
        ("xabc", ["bc", "abc"], "x"),  # both at once: the longer
        ("café !", ["é"], "caf"),
        ("🙂🙃", ["🙃"], "🙂"),
        ("stop", ["stop"], ""),
        ("", ["stop"], ""),
    ],
)
def test_the_text_before_a_stop_string_is_yielded_and_nothing_after(
    text: str, stop: str | Sequence[str], shown: str
) -> None:
    assert "".join(pieces(text, stop=stop)) == shown


def test_drawing_ends_with_the_stop_string() -> None:
    session = ScriptedSession(list(b"one.two"), 256)
    list(generate_text(session, ByteText(), stop="."))  # type: ignore[arg-type]
    assert session.taken == 4


def test_what_cannot_begin_a_stop_string_is_not_held_back() -> None:
    assert pieces("abxabc", stop="abc") == ["abx"]
    assert pieces("xyab", stop="abc") == ["x", "y", "ab"]


@pytest.mark.parametrize("cuts", list(itertools.product([False, True], repeat=6)))
def test_how_the_text_is_cut_changes_nothing(cuts: tuple[bool, ...]) -> None:
    for text, stops in [("xxabcab", ["abca", "bc"]), ("aababab", ["abab"]), ("abcabca", ["cab", "x"]), ("aaaaaaa", [])]:
        gate, shown = StopText(stops), ""
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 7]
        for low, high in itertools.pairwise(bounds):
            if not gate.ended:
                shown += gate.push(text[low:high])
        assert shown + gate.flush() == {"xxabcab": "xxa", "aababab": "a", "abcabca": "ab", "aaaaaaa": "aaaaaaa"}[text]


def test_a_stop_string_completed_by_the_last_half_character_counts() -> None:
    session = ScriptedSession([*b"ab", 0xC3], 256)
    assert "".join(generate_text(session, ByteText(), stop=["\ufffd"])) == "ab"  # type: ignore[arg-type]


# Refusals


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [3]])
def test_stop_must_be_strings(stop: Any) -> None:
    with pytest.raises(ValueError, match="must be strings of at least one character"):
        pieces("abc", stop=stop)


def test_model_and_tokenizer_must_fit() -> None:
    session: Any = ScriptedSession([], 97)
    with pytest.raises(ValueError, match="the model has 97 ids and the tokenizer 256"):
        generate_text(session, ByteText(), "ab")  # type: ignore[arg-type]


def test_text_needs_a_session_of_one_row() -> None:
    session: Any = Session(FakeModel(vocab=256), 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the session has 2 rows for 1 prompts"):
        generate_texts(session, ByteText(), ["ab"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the session has 2 rows"):
        generate_text(session, ByteText(), "ab")  # type: ignore[arg-type]


def test_a_wrong_option_is_refused_before_the_prompt_is_fed() -> None:
    session: Any = Session(FakeModel(vocab=256))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="temperature is -1"):
        generate_text(session, ByteText(), "ab", temperature=-1)  # type: ignore[arg-type]
    assert session.ages.tolist() == [0]
