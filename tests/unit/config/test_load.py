"""Reading YAML and overrides: strict, literal, every problem at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from txl.config import (
    Config,
    ConfigError,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RunConfig,
    RuntimeConfig,
    TokenizerConfig,
    TrainConfig,
    apply_overrides,
    load_config,
    to_yaml,
)


@pytest.fixture
def yaml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path to write a config to, short in messages."""
    monkeypatch.chdir(tmp_path)
    return Path("run.yaml")


def problems_of(path: Path, text: str, *overrides: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def test_values_arrive_with_their_types(yaml_file: Path) -> None:
    yaml_file.write_text(
        "# a comment\nrun: {dir: runs/a, seed: 7}\noptim:\n  lr: 3e-4\n  eps: 1e-6\n  clip: 1\n"
        "model:\n  same_length: true\n  clamp_len: 40\n  position: relative\n"
        "eval:\n  contexts: [16, 32]\n  window: null\ndata:\n",
        encoding="utf-8",
    )
    config = load_config(yaml_file)
    assert config.run == RunConfig(dir="runs/a", seed=7)
    assert config.optim.lr == 0.0003
    assert isinstance(config.optim.clip, float)
    assert config.model.same_length is True
    assert config.model.clamp_len == 40
    assert config.eval.contexts == (16, 32)
    assert config.eval.window is None
    assert config.data == DataConfig()


def test_a_config_is_frozen(yaml_file: Path) -> None:
    yaml_file.write_text("model:\n  n_layer: 2\n", encoding="utf-8")
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config(yaml_file).model.n_layer = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "# nothing\n", "\ufeffrun:\n", "---\nrun: null\n"])
def test_what_a_file_leaves_out_is_the_default(yaml_file: Path, text: str) -> None:
    yaml_file.write_text(text, encoding="utf-8")
    assert load_config(yaml_file) == Config()


def test_overrides_win_over_the_file_and_later_ones_over_earlier(yaml_file: Path) -> None:
    yaml_file.write_text("model:\n  mem_len: 5\n  tgt_len: 9\n", encoding="utf-8")
    config = load_config(yaml_file, ["model.mem_len=6", "model.mem_len=7", "optim.lr=2.5e-4"])
    assert (config.model.mem_len, config.model.tgt_len, config.optim.lr) == (7, 9, 0.00025)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("eval.contexts=16,32", (16, 32)),
        ("eval.contexts=[16, 32]", (16, 32)),
        ("eval.contexts=16", (16,)),
        ("train.tgt_len_schedule=[[0, 16],[500,128]]", ((0, 16), (500, 128))),
        ("train.tgt_len_schedule=[ [0,128] ]", ((0, 128),)),
        ("train.tgt_len_schedule=[0,16],[500,128]", ((0, 16), (500, 128))),
        ("train.tgt_len_schedule=[]", ()),
        ("eval.window=null", None),
        ("data.valid=", None),
        ("data.document_pattern=^ = [^=]", "^ = [^=]"),
        ("data.train=a=b", "a=b"),
        ("data.train= two words ", " two words "),
        ("data.train=007", "007"),
        ("data.train=1e3", "1e3"),
        ("data.train='no'", "no"),
        ('data.train="null"', "null"),
        ("model.same_length=True", True),
        ("optim.lr=1", 1.0),
        ("train.max_steps=100_000", 100_000),
        ("run.dir=2024-01-01", "2024-01-01"),
    ],
)
def test_an_override_is_read_by_the_type_of_its_field(override: str, value: Any) -> None:
    section, field = override.split("=")[0].split(".")
    found = getattr(getattr(apply_overrides(Config(), [override]), section), field)
    assert found == value
    assert type(found) is type(value)


def test_apply_overrides_leaves_the_given_config_alone() -> None:
    config = Config()
    assert apply_overrides(config, ["model.n_layer=7"]).model.n_layer == 7
    assert config == Config()
    assert apply_overrides(config, []) == config


# Words that YAML has other plans for.
AWKWARD = Config(
    run=RunConfig(dir="y", seed=0),
    runtime=RuntimeConfig(device="cuda:0"),
    tokenizer=TokenizerConfig(kind="word"),
    train=TrainConfig(tgt_len_schedule=((0, 16), (9, 128))),
    data=DataConfig(
        train="3e-4",
        valid="null",
        test="1_0",
        separator="true",
        document_pattern="^ = [^=]: #'\"\\d",
        text_field="~",
        cache_dir="é\u2028 \x85: - #",
    ),
    model=ModelConfig(clamp_len=3, dropout=1e-7),
    eval=EvalConfig(contexts=(7,), window=0),
)


@pytest.mark.parametrize("config", [Config(), AWKWARD])
def test_the_printed_yaml_reads_back_to_an_equal_config(yaml_file: Path, config: Config) -> None:
    yaml_file.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(yaml_file) == config


def test_the_printed_yaml_has_every_field(yaml_file: Path) -> None:
    text = to_yaml(Config())
    for section in dataclasses.fields(Config):
        assert f"{section.name}:\n" in text
        for field in dataclasses.fields(getattr(Config(), section.name)):
            assert f"  {field.name}:" in text


def test_all_problems_of_a_file_and_of_overrides_come_in_one_message(yaml_file: Path) -> None:
    text = """\
run:
  dir: no
modle:
  n_layer: 3
  n_head: 3
model:
  n_layer: 3.5
  n_head: "3"
  d_modell: 7
  d_model: 33
  same_length: yes
  lr: 4
optim:
  schedule: no
train: 5
mem_len: 5
eval:
  contexts: [8, 4]
"""
    assert problems_of(yaml_file, text, "model.mem_len=-3", "nlayer=3", "data.zzz=1", "model.arch=bert", "x") == [
        "override x: found no `=`; allowed: section.field=value, e.g. model.mem_len=64",
        "run.yaml:2: run.dir: found no; allowed: text, in quotes where YAML would read a bare word as true or false",
        "run.yaml:4: modle: unknown section; did you mean model?",
        "run.yaml:7: model.n_layer: found 3.5; allowed: a whole number",
        "run.yaml:8: model.n_head: found '3'; allowed: a whole number without quotes or leading zeros",
        "run.yaml:9: model.d_modell: unknown key; did you mean model.d_model?",
        "run.yaml:11: model.same_length: found yes; allowed: true or false",
        "run.yaml:12: model.lr: unknown key; did you mean optim.lr?",
        "run.yaml:14: optim.schedule: found no; allowed: one of cosine, linear, wsd, inverse_sqrt, constant",
        "run.yaml:15: train: found 5; allowed: the fields of the section, as indented lines of `field: value`",
        "run.yaml:16: mem_len: unknown section; did you mean model.mem_len?",
        "override nlayer=3: nlayer: unknown section; did you mean model.n_layer?",
        "override data.zzz=1: data.zzz: unknown key; allowed in data: "
        + ", ".join(field.name for field in dataclasses.fields(DataConfig)),
        "override model.arch=bert: model.arch: found bert; allowed: one of transformer_xl, transformer, lstm",
        "override model.mem_len=-3: model.mem_len: found -3; allowed: a whole number of at least 0",
        "run.yaml:18: eval.contexts: found [8, 4]; allowed: a list of at least one whole number of at least 1, each "
        "larger than the one before",
        "run.yaml:10: model.d_model: found 33 with model.position relative; allowed: an even number, half sines and "
        "half cosines",
    ]


def test_a_broken_value_is_not_blamed_twice(yaml_file: Path) -> None:
    problems = problems_of(yaml_file, "train:\n  accumulate: 0\n  max_steps: many\noptim:\n  warmup_steps: 5000\n")
    assert problems == [
        "run.yaml:3: train.max_steps: found many; allowed: a whole number",
        "run.yaml:2: train.accumulate: found 0; allowed: a whole number of at least 1",
    ]


def test_the_same_field_wrong_twice_is_named_twice() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(Config(), ["model.n_layer=a", "model.n_layer=b", "q.x=1", "q.y=2"])
    assert caught.value.problems == (
        "override model.n_layer=a: model.n_layer: found a; allowed: a whole number",
        "override model.n_layer=b: model.n_layer: found b; allowed: a whole number",
        "override q.x=1: q: unknown section; allowed: run, tokenizer, data, model, train, optim, eval, runtime",
    )


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "No", "YES", "true", "False"])
def test_a_bare_truth_word_is_never_a_text(yaml_file: Path, word: str) -> None:
    (problem,) = problems_of(yaml_file, f"data:\n  train: {word}\n")
    assert problem.startswith(f"run.yaml:2: data.train: found {word}; allowed: text, in quotes")
    yaml_file.write_text(f"data:\n  train: '{word}'\n", encoding="utf-8")
    assert load_config(yaml_file).data.train == word


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "1", "0", "'true'", "null", "maybe", "[true]"])
def test_only_true_and_false_are_truth_values(yaml_file: Path, word: str) -> None:
    (problem,) = problems_of(yaml_file, f"model:\n  pre_lnorm: {word}\n")
    assert problem == f"run.yaml:2: model.pre_lnorm: found {word}; allowed: true or false"


@pytest.mark.parametrize("word", ["1.0", "1e3", "0x10", "010", "1:30", "'3'", "true", "null", "3 4", "[3]", "9" * 5000])
def test_only_whole_numbers_are_whole_numbers(yaml_file: Path, word: str) -> None:
    (problem,) = problems_of(yaml_file, f"model:\n  n_layer: {word}\n")
    assert problem.startswith(f"run.yaml:2: model.n_layer: found {word}; allowed: a whole number")


@pytest.mark.parametrize("word", [".nan", ".inf", "nan", "inf", "-inf", "1e999", "true", "'0.1'", "a"])
def test_only_finite_numbers_are_numbers(yaml_file: Path, word: str) -> None:
    (problem,) = problems_of(yaml_file, f"optim:\n  weight_decay: {word}\n")
    assert problem.startswith("run.yaml:2: optim.weight_decay: found ")
    assert "number" in problem


def test_a_key_given_twice_is_refused_with_both_lines(yaml_file: Path) -> None:
    text = "model:\n  n_layer: 2\n  d_model: 8\n  n_layer: 3\nrun:\n  seed: 1\nmodel:\n  n_head: 1\n"
    assert problems_of(yaml_file, text) == [
        "run.yaml:4: model.n_layer: found twice, first in line 2; allowed: once",
        "run.yaml:7: model: found twice, first in line 1; allowed: once",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run:\n  dir: !!python/object/apply:os.system ['touch owned']\n", "the tag tag:yaml.org,2002:python/object"),
        ("!!python/object:builtins.object {}\n", "the tag tag:yaml.org,2002:python/object"),
        ("run: !!python/object:builtins.object {dir: x}\n", "the tag"),
        ("eval:\n  contexts: [!!python/name:os.system '']\n", "a list with more than plain values"),
        ("run:\n  ? !!python/name:os.system ''\n  : 3\n", "a key that is no plain word"),
        ("run:\n  ? [a, b]\n  : 3\n", "a key that is no plain word"),
        ("run:\n  dir: !secret x\n", "the tag !secret"),
        ("run:\n  dir: {a: b}\n", "a mapping"),
        ("eval:\n  contexts: [[1], 2]\n", "eval.contexts: found [[1], 2]; allowed: a list of whole numbers"),
        ("eval:\n  contexts: [[[1]], 2]\n", "a list with more"),
        ("train:\n  tgt_len_schedule: [[0, 128], {a: 1}]\n", "a list with more"),
        ("train:\n  tgt_len_schedule: [[0, '128']]\n", "found [[0, '128']]; allowed: a list of pairs of whole numbers"),
        ("train:\n  tgt_len_schedule: [0, 128]\n", "found [0, 128]; allowed: a list of pairs of whole numbers"),
        ("train:\n  tgt_len_schedule: [[0, 64, 9]]\n", "found [[0, 64, 9]]; allowed: a list of pairs"),
        ("- run\n", "a list"),
        ("just text\n", "a value"),
        ("run: [\n", "not YAML"),
        ("run:\n\tdir: x\n", "not YAML"),
        ("run: *nothing\n", "not YAML"),
        ("run: {}\n---\nrun: {}\n", "not YAML"),
        ("run:\n  dir: \x07\n", "not YAML"),
        ("run: " + "[" * 5_000, "nested too deeply"),
        ("run:\n  dir: ${oc.env:HOME}\n", "not filled in"),
        ("run:\n  dir: ???\n", "not filled in"),
        ("<<: {seed: 1}\n", "<<: unknown section"),
    ],
)
def test_hostile_or_broken_yaml_is_refused_and_nothing_runs(yaml_file: Path, text: str, message: str) -> None:
    problems = problems_of(yaml_file, text)
    assert len(problems) == 1
    assert message in problems[0]
    assert problems[0].startswith("run.yaml:")
    assert sorted(path.name for path in yaml_file.parent.iterdir()) == ["run.yaml"]


def test_anchors_do_not_explode(yaml_file: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    assert len(problems_of(yaml_file, "\n".join(lines))) == 60


def test_a_missing_file_says_what_stands_beside_it(yaml_file: Path) -> None:
    Path("other.yaml").write_text("", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"run\.yaml: there is no such file; allowed: a YAML file \(e\.g\. other\.yaml\)"
    ):
        load_config(yaml_file)


def test_a_folder_is_no_config_but_its_config_is_named(yaml_file: Path) -> None:
    Path("folder").mkdir()
    Path("folder/config.yaml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"folder: is a folder; allowed: a YAML file \(e\.g\. folder/config\.yaml\)"):
        load_config("folder")


def test_bytes_that_are_not_utf8_are_named_with_their_offset(yaml_file: Path) -> None:
    yaml_file.write_bytes(b"run:\n  dir: \xff\n")
    with pytest.raises(
        ConfigError, match=r"run\.yaml: found a byte that is not UTF-8 at offset 12; allowed: text in UTF-8"
    ):
        load_config(yaml_file)


def test_a_huge_file_is_not_parsed(yaml_file: Path) -> None:
    yaml_file.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="found 1,000,001 bytes; allowed: a config of at most 1,000,000 bytes"):
        load_config(yaml_file)
