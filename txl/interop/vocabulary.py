"""Published vocabularies <-> our tokenizers, as text or JSON alone: a pickle is refused with a way out.

vocab.txt, vocab.json or tokenizer.json -> `read_vocabulary` -> a Tokenizer; a Tokenizer -> `write_vocabulary` -> a
tokenizer.json that the tokenizers library, and so transformers, reads. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txl.data import DataError, Tokenizer, tokenizer_from_json
from txl.interop.files import member, read_json, read_text

TEXT_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Where a vocabulary is looked for, in this order."""
PICKLED_FILES = ("vocab.pkl", "vocab.bin", "vocab-cache.bin", "cache.pt", "corpus.bin")
LARGEST_BYTES = 100_000_000
LINE_END = "<eos>"
UNKNOWN = ("<unk>", "<UNK>")


def find_vocabulary(folder: Path) -> Path | None:
    """The vocabulary file of a folder, None where there is none. Raises DataError where it holds but a pickled one."""
    for name in TEXT_FILES:
        if (path := member(folder, name)) is not None:
            return path
    for name in PICKLED_FILES:
        if (folder / name).exists():
            raise _pickled(folder / name)
    return None


def read_vocabulary(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a vocabulary file whose ids are those of a model with `vocab_size` of them.

    vocab.txt: a symbol begins each line, in the order of ids. vocab.json: a list of symbols in that order, or an object
    of symbols and ids. tokenizer.json: of the tokenizers library, its rules kept. Symbols are words between white
    space, as in the published code; `<eos>`, where there is one, is each line end. Raises DataError for a pickle, a
    repeated or missing symbol, or another number of them.
    """
    if path.name in PICKLED_FILES or path.suffix not in (".txt", ".json"):
        raise _pickled(path)
    if path.suffix == ".txt":
        symbols = _symbols_of_lines(path)
    else:
        document = read_json(path, limit_bytes=LARGEST_BYTES)
        if isinstance(document, dict) and isinstance(document.get("model"), dict):
            return _sized(path, _tokenizer(path, document), vocab_size)
        symbols = _symbols_of_json(path, document)
    if len(symbols) != vocab_size:
        raise _wrong_size(path, len(symbols), vocab_size)
    return _tokenizer(path, word_document(symbols))


def write_vocabulary(tokenizer: Tokenizer, folder: Path) -> list[str]:
    """Write what `transformers.PreTrainedTokenizerFast` reads, or for words split at punctuation, which it has no rule
    for, vocab.txt; return what its reader must know."""
    document = library_document(tokenizer)
    if document is None:
        symbols = tokenizer.fields()["symbols"]
        (folder / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols), encoding="utf-8", newline="")
        return ["vocab.txt holds the words alone: split text at white space and punctuation before looking them up"]
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8", newline="")
    reader = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(reader, indent=2), encoding="utf-8")
    return []


def line_end_id(tokenizer: Tokenizer) -> int | None:
    """The id of `<eos>`; None where the vocabulary has none."""
    fields = tokenizer.fields()
    symbols = fields.get("symbols") or fields.get("library", {}).get("model", {}).get("vocab") or ()
    found = symbols.get(LINE_END) if isinstance(symbols, dict) else None
    return symbols.index(LINE_END) if found is None and LINE_END in symbols else found


def library_document(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The tokenizer as a document of the tokenizers library, None where that has no rule for how it splits text."""
    fields = tokenizer.fields()
    if fields["kind"] in ("bpe", "file"):
        return _with_old_merges(fields["library"])
    if fields["kind"] == "byte":
        vocabulary = {symbol: value for value, symbol in enumerate(_byte_symbols())}
        model = {"type": "BPE", "vocab": vocabulary, "merges": []}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return _document(model, pre_tokenizer=byte_level, decoder=byte_level)
    if fields["kind"] == "word":
        if fields["split"] != "whitespace":
            return None
        return word_document(fields["symbols"], lowercase=fields["lowercase"])
    every_character = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
    lower = {"type": "Lowercase"} if fields["lowercase"] else None
    model = _lookup(fields["symbols"])
    return _document(model, normalizer=lower, pre_tokenizer=every_character, decoder={"type": "Fuse"})


def _with_old_merges(document: dict[str, Any]) -> dict[str, Any]:
    """The document with merges as texts of two words, which releases of the library from 2023 read as today's do; a
    merge of symbols with spaces has no such form."""
    merges = document["model"].get("merges", ())
    if any(" " in part for pair in merges for part in pair):
        return document
    model = document["model"] | {"merges": [" ".join(pair) for pair in merges]} if merges else document["model"]
    return document | {"model": model}


def word_document(symbols: Sequence[str], *, lowercase: bool = False) -> dict[str, Any]:
    """A document of the tokenizers library for words between white space, `<eos>` standing for each line end."""
    steps: list[dict[str, Any]] = [{"type": "Lowercase"}] if lowercase else []
    spaces = {"type": "WordPiece", "prefix": "\0", "cleanup": False}  # a space before each word but the first
    decoder: dict[str, Any] = spaces
    if LINE_END in symbols:
        steps.append({"type": "Replace", "pattern": {"String": "\n"}, "content": f" {LINE_END} "})
        line_end = {"type": "Replace", "pattern": {"Regex": f" ?{LINE_END} ?"}, "content": "\n"}
        decoder = {"type": "Sequence", "decoders": [spaces, {"type": "Fuse"}, line_end]}
    normalizer = {"type": "Sequence", "normalizers": steps} if steps else None
    return _document(
        _lookup(symbols), normalizer=normalizer, pre_tokenizer={"type": "WhitespaceSplit"}, decoder=decoder
    )


def _lookup(symbols: Sequence[str]) -> dict[str, Any]:
    """A model that finds each word in the list.

    Without an unknown symbol, as in the published character vocabularies, a word that is not in it falls apart into
    the characters that are; one that holds another is refused where it is met.
    """
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    unknown = next((symbol for symbol in UNKNOWN if symbol in vocabulary), None)
    if unknown is not None:
        return {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown}
    return {"type": "BPE", "vocab": vocabulary, "merges": [], "ignore_merges": True}


def _document(
    model: dict[str, Any],
    *,
    pre_tokenizer: dict[str, Any],
    decoder: dict[str, Any],
    normalizer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The frame of a tokenizer.json."""
    empty: dict[str, Any] = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None}
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model}
    return {"version": "1.0"} | empty | parts


def _byte_symbols() -> list[str]:
    """The visible characters by which the tokenizers library writes the 256 bytes, in the order of bytes."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [value for value in range(256) if value not in visible]
    return [chr(value if value in visible else 0x100 + hidden.index(value)) for value in range(256)]


def _symbols_of_lines(path: Path) -> list[str]:
    lines = read_text(path, limit_bytes=LARGEST_BYTES).split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split(maxsplit=1)
        if not words:
            raise DataError(f"{path}: line {number} is empty; each line is one symbol, its number the id + 1")
        if words[0] in first_line:
            raise DataError(f"{path}: line {number} repeats {words[0]!r} of line {first_line[words[0]]}")
        first_line[words[0]] = number
    return list(first_line)


def _symbols_of_json(path: Path, document: object) -> list[str]:
    if isinstance(document, dict):
        ids = list(document.values())
        if any(type(i) is not int for i in ids) or sorted(ids) != list(range(len(ids))):
            raise DataError(f"{path}: must give each symbol one of the ids 0 to {len(ids) - 1}, each once")
        return sorted(document, key=lambda symbol: document[symbol])
    if not isinstance(document, list) or not all(isinstance(symbol, str) for symbol in document):
        raise DataError(f"{path}: must be a list of symbols in the order of ids, or an object of symbols and ids")
    if len(set(document)) != len(document):
        repeated = next(symbol for number, symbol in enumerate(document) if symbol in document[:number])
        raise DataError(f"{path}: repeats {repeated!r}")
    return document


def _tokenizer(path: Path, document: dict[str, Any]) -> Tokenizer:
    try:
        return tokenizer_from_json(json.dumps(document))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _sized(path: Path, tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    if tokenizer.vocab_size != vocab_size:
        raise _wrong_size(path, tokenizer.vocab_size, vocab_size)
    return tokenizer


def _wrong_size(path: Path, found: int, wanted: int) -> DataError:
    return DataError(f"{path}: has {found:,} symbols, the model has {wanted:,}; is it the vocabulary of this model?")


def _pickled(path: Path) -> DataError:
    """The refusal of a file that could run code, with how its owner writes it out as text."""
    folder = path.parent
    return DataError(
        f"{path}: no text or JSON; a pickled vocabulary could run code and is never opened here. Where you trust it, "
        "write it out in the environment it comes from: for transformers 4.35,\n"
        '  python -c "import pathlib, transformers; '
        f"t = transformers.TransfoXLTokenizer.from_pretrained({str(folder)!r}); "
        "pathlib.Path('vocab.txt').write_text('\\n'.join(sorted(t.sym2idx, key=t.sym2idx.get)), encoding='utf-8')\"\n"
        "for the 2019 code, the same of `torch.load('cache.pt').vocab.idx2sym`. Then put vocab.txt beside the weights, "
        "or name it"
    )
