"""Vocabulary files against ids and text written out by hand, and our tokenizers against what is written of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.interop.published_files import WORDS
from txl.config import TokenizerConfig
from txl.data import DataError, Tokenizer, tokenizer_from_json, train_tokenizer
from txl.data.symbols import ByteTokenizer, CharTokenizer, WordTokenizer
from txl.interop.vocabulary import (
    find_vocabulary,
    library_document,
    line_end_id,
    read_vocabulary,
    word_document,
    write_vocabulary,
)

TEXT = "the river ran under\na purple bridge and its boats\n"
IDS = [1, 3, 4, 5, 0, 6, 2, 8, 9, 10, 11, 0]
READ_BACK = "the river ran under\na <unk> bridge and its boats\n"


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def refusal(path: Path, size: int = len(WORDS)) -> str:
    with pytest.raises(DataError) as caught:
        read_vocabulary(path, size)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.txt", "".join(f"{word}\n" for word in WORDS)),
        ("vocab.txt", "\ufeff" + "\r\n".join(f"{word} {100 - i}" for i, word in enumerate(WORDS))),
        ("vocab.json", WORDS),
        ("vocab.json", dict(sorted({word: i for i, word in enumerate(WORDS)}.items()))),
        ("tokenizer.json", word_document(WORDS)),
    ],
)
def test_words_keep_their_ids_and_eos_is_each_line_end(name: str, content: Any, tmp_path: Path) -> None:
    tokenizer = read_vocabulary(write(tmp_path / name, content), len(WORDS))
    assert tokenizer.encode(TEXT) == IDS
    assert tokenizer.decode(IDS) == READ_BACK
    decoder = tokenizer.stream_decoder()
    assert "".join(map(decoder.push, IDS)) + decoder.flush() == READ_BACK
    assert (tokenizer.vocab_size, tokenizer.unknown_id, line_end_id(tokenizer)) == (len(WORDS), 2, 0)


def test_a_vocabulary_without_unknown_symbol_reads_what_it_has(tmp_path: Path) -> None:
    tokenizer = read_vocabulary(write(tmp_path / "vocab.json", ["_", "a", "b", "10", "1"]), 5)
    assert tokenizer.encode("a b _\n10 1") == [1, 2, 0, 3, 4]
    assert tokenizer.encode("ab b_ 11") == [1, 2, 2, 0, 4, 4]  # words that fall apart into symbols
    with pytest.raises(DataError, match=r"text to encode: '\?' in 'a b_\\nab\? 101' has no symbol in this vocabulary"):
        tokenizer.encode("a b_\nab? 101")
    assert (tokenizer.token_id("b"), tokenizer.token_id("?")) == (2, None)
    assert tokenizer.unknown_id is None
    assert line_end_id(tokenizer) is None
    assert tokenizer.decode([1, 3]) == "a 10"


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("vocab.txt", "the\n\nriver\n", "line 2 is empty"),
        ("vocab.txt", "the\nriver\nthe 7\n", "line 3 repeats 'the' of line 1"),
        ("vocab.txt", "the\nriver\n", "has 2 symbols, the model has 13"),
        ("vocab.json", ["the", "the"], "repeats 'the'"),
        ("vocab.json", ["the", 7], "must be a list of symbols in the order of ids"),
        ("vocab.json", {"the": 0, "river": 2}, "one of the ids 0 to 1, each once"),
        ("vocab.json", {"the": 0, "river": "1"}, "one of the ids 0 to 1, each once"),
        ("vocab.json", {"the": False, "river": True}, "one of the ids 0 to 1, each once"),
        ("vocab.json", "[1, 2", "is not JSON"),
        ("vocab.json", "[" * 200_000, "nested too deep"),
        ("tokenizer.json", {"model": {"type": "Pickle"}}, "the tokenizers library cannot read it"),
        ("tokenizer.json", word_document(["a", "<unk>"]), "has 2 symbols, the model has 13"),
    ],
)
def test_a_wrong_vocabulary_is_refused_with_the_reason(name: str, content: Any, named: str, tmp_path: Path) -> None:
    assert named in refusal(write(tmp_path / name, content))


@pytest.mark.parametrize("name", ["vocab.pkl", "vocab.bin", "cache.pt", "words.pickle"])
def test_a_pickled_vocabulary_is_refused_with_a_way_out_and_never_opened(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"cos\nsystem\n(S'touch run'\ntR.")
    text = refusal(path)
    assert "could run code and is never opened here" in text
    assert f"transformers.TransfoXLTokenizer.from_pretrained('{tmp_path}')" in text
    assert "torch.load('cache.pt').vocab.idx2sym" in text
    if name != "words.pickle":
        with pytest.raises(DataError, match="never opened"):
            find_vocabulary(tmp_path)


def test_the_way_out_writes_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def from_pretrained(folder: str) -> SimpleNamespace:
        asked.append(folder)
        # transformers 4.35 leaves idx2sym empty after reading its own pickle
        return SimpleNamespace(idx2sym=[], sym2idx={word: WORDS.index(word) for word in sorted(WORDS)})

    fake = SimpleNamespace(TransfoXLTokenizer=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.chdir(tmp_path)
    exec(refusal(tmp_path / "vocab.pkl").split('python -c "')[1].split('"\n')[0])
    assert asked == [str(tmp_path)]
    assert read_vocabulary(tmp_path / "vocab.txt", len(WORDS)).encode(TEXT) == IDS


def test_text_is_looked_for_before_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "vocab.pkl").write_bytes(b"x")
    path = write(tmp_path / "vocab.json", WORDS)
    assert find_vocabulary(tmp_path) == path
    path = write(tmp_path / "tokenizer.json", word_document(WORDS))
    assert find_vocabulary(tmp_path) == path
    (tmp_path / "empty").mkdir()
    assert find_vocabulary(tmp_path / "empty") is None


MIXED = "The Grey\tbridge, naïve café π 🚣\r\n\n  ends ΣΑΣ\x00 x"
CHARACTERS = ["<unk>", "<eos>", *(c for c, _ in Counter("The grey bridge, π\n🚣 ends").most_common())]


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(),
        CharTokenizer(CHARACTERS, separator="<eos>"),
        CharTokenizer(CHARACTERS, separator="<eos>", lowercase=True),
        WordTokenizer(["<unk>", "<eos>", "The", "grey", "bridge,", "π"], split="whitespace"),
        WordTokenizer(["<unk>", "<eos>", "the", "grey", "bridge,", "π"], split="whitespace", lowercase=True),
    ],
    ids=["byte", "char", "char lower", "word", "word lower"],
)
def test_a_tokenizer_written_for_others_encodes_as_ours(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert write_vocabulary(tokenizer, tmp_path) == []
    again = read_vocabulary(tmp_path / "tokenizer.json", tokenizer.vocab_size)
    assert again.encode(MIXED) == tokenizer.encode(MIXED)
    assert again.decode(again.encode(MIXED)) == tokenizer.decode(tokenizer.encode(MIXED))
    assert again.lossless is tokenizer.lossless
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_library_tokenizers_are_written_as_they_are(tmp_path: Path) -> None:
    document = word_document(WORDS)
    tokenizer = tokenizer_from_json(json.dumps(document))
    write_vocabulary(tokenizer, tmp_path)
    assert read_vocabulary(tmp_path / "tokenizer.json", len(WORDS)).encode(TEXT) == IDS


def test_sub_words_are_written_for_old_readers_too(tmp_path: Path) -> None:
    config = TokenizerConfig(kind="bpe", vocab_size=270)
    tokenizer = train_tokenizer(config, [TEXT * 50], separator=None)
    write_vocabulary(tokenizer, tmp_path)
    merges = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]
    assert len(merges) == 270 - 256
    assert all(isinstance(merge, str) for merge in merges)
    again = read_vocabulary(tmp_path / "tokenizer.json", 270)
    assert again.encode(MIXED) == tokenizer.encode(MIXED)
    assert again.decode(again.encode(MIXED)) == MIXED


def test_words_split_at_punctuation_are_written_as_a_list(tmp_path: Path) -> None:
    tokenizer = WordTokenizer(["<unk>", "<eos>", "the", ","], split="punctuation")
    assert library_document(tokenizer) is None
    (note,) = write_vocabulary(tokenizer, tmp_path)
    assert "split text at white space and punctuation" in note
    assert (tmp_path / "vocab.txt").read_text() == "<unk>\n<eos>\nthe\n,\n"
    assert line_end_id(tokenizer) == 1
