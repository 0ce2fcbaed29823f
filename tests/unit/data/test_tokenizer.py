"""bpe trained on a small text, given tokenizer files of several families, and hostile JSON.

Texts and files made here -> ids and texts. The reference for encoding is the tokenizers library called on its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from txl.config import TokenizerConfig
from txl.data import DataError, Tokenizer, cutting, tokenizer_from_json, train_tokenizer
from txl.data import tokenizer as tokenizer_module
from txl.data.tokenizer import LibraryTokenizer, counting_cut

TRAINING = ["the cat sat on the mat\n" * 40 + "né où ça\n" * 9, "the dog and the cat   \n\n\n\n" * 30]
HARD = "the cat\r\n\r\n  \t sat\0 \U0001f600 e\u0301 \u4e16\n\n\n<eos> <unk> naïve\n "


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=280), TRAINING, separator="<eos>")


def given(tmp_path: Path, library: tokenizers.Tokenizer, separator: str | None = None) -> Tokenizer:
    path = tmp_path / "given.json"
    path.write_text(library.to_str(), encoding="utf-8")
    return train_tokenizer(TokenizerConfig(kind="file", path=str(path)), [], separator=separator)


def byte_level(*, special: list[str]) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    library.train_from_iterator(TRAINING, trainer)
    return library


def test_bpe_has_all_bytes_and_the_asked_size(bpe: Tokenizer) -> None:
    assert (bpe.vocab_size, bpe.lossless, bpe.unknown_id) == (280, True, None)
    assert bpe.separator_id == bpe.token_id("<eos>")
    lengths = bpe.byte_lengths()
    assert lengths[bpe.separator_id] == 0
    assert sorted(lengths)[1:257] == [1] * 256


def test_bpe_gives_any_text_back_and_counts_its_bytes(bpe: Tokenizer) -> None:
    draw = random.Random(3)
    texts = [HARD, "", "\n", *TRAINING]
    texts += [draw.randbytes(200).decode("utf-8", "replace") for _ in range(20)]
    texts += ["".join(chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(80))]
    for text in texts:
        ids = bpe.encode(text)
        assert bpe.decode(ids) == text
        assert bpe.byte_lengths()[ids].sum() == len(text.encode())


def test_bpe_merges_words_but_never_across_a_line_end(bpe: Tokenizer) -> None:
    assert len(bpe.encode("the cat")) == 2
    for line in ("\n\n\n\n", "a\n\n  \n b\n"):
        for i in bpe.encode(line):
            assert "\n" not in bpe.decode([i])[:-1]


def test_bpe_reads_the_separators_name_in_a_text_as_text(bpe: Tokenizer) -> None:
    assert bpe.separator_id not in bpe.encode("a<eos>b")
    assert bpe.decode([bpe.separator_id or 0]) == "<eos>"


def test_bpe_cuts_an_endless_line_alike_in_parts_and_in_whole(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "UNIT", 7)
    monkeypatch.setattr(cutting, "BATCH", 20)
    text = "the cat sat\n" + "the cat sat on the mat" * 3 + "\nthe\n\n" + "dog" * 11
    whole = bpe.encode(text)
    assert bpe.decode(whole) == text
    for end in range(1, len(text)):
        at = bpe.cut(text[:end])
        assert bpe.encode(text[:at]) + bpe.encode(text[at:]) == whole


def test_bpe_streams_its_text_without_half_characters(bpe: Tokenizer) -> None:
    decoder, shown = bpe.stream_decoder(), ""
    for i in bpe.encode(HARD):
        shown += decoder.push(i)
        assert HARD.startswith(shown)
    assert shown + decoder.flush() == HARD


def test_bpe_is_the_same_in_another_process_and_through_json(bpe: Tokenizer) -> None:
    code = (
        "from txl.config import TokenizerConfig\nfrom txl.data.tokenizer import train_tokenizer\n"
        f"t = train_tokenizer(TokenizerConfig(kind='bpe', vocab_size=280), {TRAINING!r}, separator='<eos>')\n"
        "import sys; assert 'torch' not in sys.modules; print(t.hash)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == bpe.hash
    again = tokenizer_from_json(bpe.to_json())
    assert (again.hash, again.encode(HARD), again.separator_id) == (bpe.hash, bpe.encode(HARD), bpe.separator_id)


def test_bpe_counts_alike_whether_documents_come_whole_or_in_pieces() -> None:
    config = TokenizerConfig(kind="bpe", vocab_size=280)
    text = TRAINING[0]
    at = counting_cut(config)(text[:500])
    assert 0 < at < 500
    whole = train_tokenizer(config, [text], separator=None)
    assert train_tokenizer(config, [text[:at], text[at:]], separator=None).hash == whole.hash


def test_bpe_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(DataError, match=r"tokenizer.vocab_size: 256, but the bytes and special tokens alone are 257"):
        train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=256), TRAINING, separator="<eos>")


@pytest.mark.parametrize("kind", ["byte", "word"])
def test_separators_that_cannot_be_are_refused(kind: str) -> None:
    name = "<eos>" if kind == "byte" else "<unk>"
    with pytest.raises(DataError, match=f"data.separator: '?{name}"):
        train_tokenizer(TokenizerConfig(kind=kind), ["a"], separator=name)  # type: ignore[arg-type]


def test_a_given_byte_level_file_encodes_as_the_library_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = byte_level(special=["<|end|>"])
    tokenizer = given(tmp_path, library, separator="<|end|>")
    assert (tokenizer.lossless, tokenizer.unknown_id, tokenizer.separator_id) == (True, None, 0)
    text = ("the cat sat.\n\n  né\n" * 5 + "the dog 5\n\n\n \n") * 6
    expected = library.encode(text).ids
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode(expected) == text
    monkeypatch.setattr(tokenizer_module, "UNIT", 11)
    assert tokenizer.encode(text) == expected
    cuts = {tokenizer.cut(text[:end]) for end in range(1, len(text), 13)}
    assert len(cuts) > 10
    for at in cuts:
        assert tokenizer.encode(text[:at]) + tokenizer.encode(text[at:]) == expected


def test_a_given_file_never_truncates_pads_or_adds_tokens(tmp_path: Path) -> None:
    library = byte_level(special=["<s>"])
    plain = library.encode("the cat sat on the mat").ids
    library.enable_truncation(3)
    library.enable_padding(length=64)
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = given(tmp_path, library)
    assert len(plain) > 3
    assert tokenizer.encode("the cat sat on the mat") == plain
    assert tokenizer.lossless


def test_a_given_word_piece_file_is_lossy_with_unknowns(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = given(tmp_path, library)
    assert (tokenizer.vocab_size, tokenizer.lossless, tokenizer.unknown_id) == (3, False, 0)
    assert tokenizer.encode("the dog cat") == [1, 0, 2]
    assert tokenizer.byte_lengths().tolist() == [5, 3, 3]
    again = tokenizer_from_json(tokenizer.to_json())
    assert (again.hash, again.encode("the dog")) == (tokenizer.hash, [1, 0])


def test_a_file_that_marks_the_start_of_a_text_gets_each_document_whole(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    library.decoder = decoders.Metaspace(prepend_scheme="first")
    library.train_from_iterator(TRAINING, trainers.BpeTrainer(vocab_size=90, show_progress=False))
    tokenizer = given(tmp_path, library)
    text = "the cat\nsat on\n" * 50
    assert tokenizer.cut(text) == 0
    assert tokenizer.encode(text) == library.encode(text).ids
    decoder = tokenizer.stream_decoder()
    ids = tokenizer.encode("the cat sat on")
    assert "".join(decoder.push(i) for i in ids) + decoder.flush() == tokenizer.decode(ids) == "the cat sat on"


def test_a_file_that_normalises_is_not_lossless(tmp_path: Path) -> None:
    library = byte_level(special=[])
    library.normalizer = normalizers.NFC()
    tokenizer = given(tmp_path, library)
    assert not tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"


def test_a_tokenizer_written_here_may_be_given_again(tmp_path: Path, bpe: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    word = train_tokenizer(TokenizerConfig(kind="word"), ["a b"], separator="<doc>")
    for tokenizer, separator in ((bpe, "<eos>"), (word, "<doc>")):
        path.write_text(tokenizer.to_json(), encoding="utf-8")
        again = train_tokenizer(TokenizerConfig(kind="file", path=str(path)), [], separator=separator)
        assert again.hash == tokenizer.hash
    with pytest.raises(DataError, match=r"was made with data.separator '<doc>', not None; set the same one"):
        train_tokenizer(TokenizerConfig(kind="file", path=str(path)), [], separator=None)


def test_a_separator_the_file_lacks_is_refused_with_its_special_tokens(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.separator: '<doc>' is not in the vocabulary.*: <a>, <b>"):
        given(tmp_path, byte_level(special=["<b>", "<a>"]), separator="<doc>")


def test_ids_the_file_leaves_out_are_ids_without_text() -> None:
    library = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "b": 7}, unk_token="<unk>"))
    tokenizer = LibraryTokenizer(library, kind="file", separator=None)
    assert tokenizer.vocab_size == 8
    assert tokenizer.byte_lengths().tolist() == [5, 0, 0, 0, 0, 0, 0, 1]
    assert tokenizer.decode([3, 7]) == "b"


HOSTILE = {
    "deep": ("[" * 1_000_000, "nested too deep"),
    "deep object": ('{"a":' * 1_000_000, "nested too deep"),
    "no object": ("[1, 2]", "must be an object, not list"),
    "no json": ("\x80\x04pickle", "not JSON"),
    "newer": ('{"txl_tokenizer": 2, "kind": "byte"}', "format 2, but this version reads format 1"),
    "other kind": ('{"txl_tokenizer": 1, "kind": "os.system"}', "must be byte, char, word, bpe or file"),
    "symbols": ('{"txl_tokenizer": 1, "kind": "char", "symbols": [1]}', "needs a list of texts under symbols"),
    "twice": ('{"txl_tokenizer": 1, "kind": "char", "symbols": ["<unk>", "a", "a"]}', "stands twice"),
    "long": ('{"txl_tokenizer": 1, "kind": "char", "symbols": ["<unk>", "ab"]}', "must be <unk> and then single"),
    "separator": ('{"txl_tokenizer": 1, "kind": "word", "separator": [1]}', "must be text or null"),
    "split": ('{"txl_tokenizer": 1, "kind": "word", "symbols": ["<unk>", "<eos>"]}', "whitespace or punctuation"),
    "library": ('{"model": {"type": "Evil"}}', "the tokenizers library cannot read it"),
    "no library": ('{"txl_tokenizer": 1, "kind": "bpe"}', "the tokenizers library cannot read it"),
    "empty": (tokenizers.Tokenizer(models.BPE()).to_str(), "the vocabulary is empty"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_gives_one_clean_error(name: str) -> None:
    text, message = HOSTILE[name]
    with pytest.raises(DataError, match=message):
        tokenizer_from_json(text)


def test_a_file_of_200_mb_is_refused_by_size_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(DataError, match=r"tokenizer.json: has 200,000,000 bytes, but at most 100,000,000 are read"):
        train_tokenizer(TokenizerConfig(kind="file", path=str(path)), [], separator=None)


def test_text_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "LARGEST_JSON_BYTES", 20)
    with pytest.raises(DataError, match="21 characters, but at most 20 are read"):
        tokenizer_from_json(" " * 21)


def test_a_file_that_is_missing_or_binary_is_named(tmp_path: Path) -> None:
    missing, binary = tmp_path / "none.json", tmp_path / "binary.json"
    binary.write_bytes(b"{}\xff")
    with pytest.raises(DataError, match=r"tokenizer.path: .*none.json cannot be read: No such file"):
        train_tokenizer(TokenizerConfig(kind="file", path=str(missing)), [], separator=None)
    with pytest.raises(DataError, match=r"binary.json is not UTF-8 at byte 2"):
        train_tokenizer(TokenizerConfig(kind="file", path=str(binary)), [], separator=None)


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "[UNK]"},
        {
            "type": "WordPiece",
            "vocab": {"a": 0, "b": 1},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 9,
        },
    ],
    ids=lambda model: model["type"],
)
def test_what_a_given_vocabulary_has_no_symbol_for_is_refused_not_dropped(model: dict[str, Any]) -> None:
    document = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    tokenizer = tokenizer_from_json(json.dumps(document))
    assert (tokenizer.vocab_size, tokenizer.unknown_id) == (2, None)
    assert tokenizer.encode("a b\na") == [0, 1, 0]
    assert tokenizer.encode("") == []
    with pytest.raises(DataError, match=r"text to encode: 'é' in 'a b é b' has no symbol .* take it out of the text"):
        tokenizer.encode("a b é b")
    assert tokenizer_from_json(tokenizer.to_json()).to_json() == tokenizer.to_json()
    assert "unseen" not in tokenizer.to_json()


def test_a_unigram_model_without_unknown_symbol_is_refused() -> None:
    document = {"version": "1.0", "model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}}
    with pytest.raises(DataError, match="its Unigram model has no unk_id"):
        tokenizer_from_json(json.dumps(document))
