"""Every verb on a model that trains in a second: what it prints, what it leaves, and how it refuses."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import words
from txl import cli
from txl.checkpoint import load_run
from txl.config import Config, ConfigError, RunConfig
from txl.verbs import training

XL = """\
run: {{dir: {folder}/runs/xl}}
data: {{train: {folder}/corpus.txt, split_by: position, batch_size: 4, cache_dir: {folder}/cache}}
model: {{n_layer: 2, d_model: 16, n_head: 2, d_head: 6, d_inner: 24, tgt_len: 12, mem_len: 10}}
train: {{max_steps: 6, eval_every: 3, save_every: 3, sample_tokens: 20, eval_tokens: 300}}
optim: {{warmup_steps: 2}}
eval: {{contexts: [5, 10, 20], sample_targets: 40, batch_size: 3}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one file, an XL config and its vanilla twin, both trained and compared."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "corpus.txt").write_text(words(4000), encoding="utf-8")
    (folder / "other.txt").write_text(words(100, seed=5), encoding="utf-8")
    xl = XL.format(folder=folder)
    (folder / "tiny.yaml").write_text(xl, encoding="utf-8")
    twin = xl.replace("runs/xl", "runs/vanilla").replace(
        "mem_len: 10", "mem_len: 0, arch: transformer, position: sinusoidal"
    )
    (folder / "tiny-vanilla.yaml").write_text(twin, encoding="utf-8")
    assert cli.main(["compare", str(folder / "tiny.yaml")]) == 0
    return folder


def test_compare_trains_what_is_missing_and_reports_beside_the_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = folder / "runs" / "report"
    assert {"report.html", "report.md", "report.json", "context.png"} <= {path.name for path in report.iterdir()}
    written = (report / "report.html").stat().st_mtime_ns
    monkeypatch.chdir(folder)
    assert cli.main(["compare", "tiny.yaml"]) == 0  # a second time: nothing is trained, measured or written
    shown = capsys.readouterr()
    assert shown.out.count("trained before, nothing to do") == 2
    assert "step 1/6" not in shown.out
    assert "bits per byte" in shown.out
    best = min(("xl", "vanilla"), key=lambda run: shown.out.index(f"{run} ("))  # the one the answer names first
    assert f"{folder}/runs/{best} goes on from a prompt, whose end is ⟫:" in shown.out
    assert " ⟫ " in shown.out
    assert "report      runs/report/report.html" in shown.out
    assert "try next    txl generate" in shown.out
    assert (report / "report.html").stat().st_mtime_ns == written


def test_compare_measures_anew_what_was_asked_differently(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((folder / "runs/xl/measurement.json").read_text("utf-8"))["measurement"]
    assert cli.main(["compare", str(folder / "tiny.yaml"), "eval.contexts=5,10", "eval.sample_targets=30"]) == 0
    after = json.loads((folder / "runs/xl/measurement.json").read_text("utf-8"))["measurement"]
    assert {point["context"] for point in before["points"]} == {5, 10, 20}
    assert {point["context"] for point in after["points"]} == {5, 10}


def test_compare_puts_runs_under_another_folder(folder: Path) -> None:
    configs = training.configs_to_compare([str(folder / "tiny.yaml"), "run.dir=elsewhere/now", "train.max_steps=3"])
    assert [config.run.dir for config in configs] == ["elsewhere/now/xl", "elsewhere/now/vanilla"]
    assert [config.train.max_steps for config in configs] == [3, 3]
    assert [config.model.arch for config in configs] == ["transformer_xl", "transformer"]


def test_the_report_lies_beside_the_runs_and_never_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    beside = [Config(run=RunConfig(dir=run)) for run in ("/a/runs/x/1", "/a/runs/y/1")]
    apart = [Config(run=RunConfig(dir=run)) for run in ("/a/runs/x", "/b/runs/y")]
    assert training.report_folder(beside) == Path("a/runs/report")
    assert training.report_folder(apart) == Path("a/runs/report")


def test_compare_refuses_all_configs_in_one_message(folder: Path) -> None:
    xl, twin = folder / "tiny.yaml", folder / "tiny-vanilla.yaml"
    with pytest.raises(ConfigError) as caught:
        training.configs_to_compare([str(xl), "model.mem_len=5", "model.n_layer=0"])
    assert caught.value.problems == (
        f"{xl}: override model.n_layer=0: model.n_layer: found 0; allowed: a whole number of at least 1",
        f"{twin}: override model.n_layer=0: model.n_layer: found 0; allowed: a whole number of at least 1",
        f"{twin}: override model.mem_len=5: model.mem_len: found 5 with model.arch transformer; allowed: 0, for the "
        "vanilla baseline keeps no memory",
    )
    with pytest.raises(ConfigError, match="allowed: a folder of its own for each run"):
        training.configs_to_compare([str(xl), str(xl)])
    with pytest.raises(ConfigError, match=r"its twin tiny-vanilla-vanilla\.yaml beside it"):
        training.configs_to_compare([str(twin)])
    with pytest.raises(ConfigError, match=r"found no config; allowed: .* folders of runs"):
        training.configs_to_compare(["model.mem_len=5"])
    with pytest.raises(ConfigError, match=r"nowhere: no such file or folder; allowed: a YAML file, or the folder of"):
        training.configs_to_compare([str(xl), str(folder / "nowhere")])


def test_compare_is_for_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["compare", str(folder / "tiny.yaml")]) == 2
    assert "found several processes; allowed: one" in capsys.readouterr().err


def test_eval_prints_loss_and_settings_and_writes_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = folder / "scores.json"
    assert cli.main(["eval", str(folder / "runs/xl"), "--context", "4,10", "--json", str(scores)]) == 0
    shown = capsys.readouterr().out
    record = json.loads(scores.read_text("utf-8"))
    headline = record["points"][0]
    tokens = record["text_tokens"] - 1
    assert headline["tokens"] == tokens
    assert f"{headline['nats'] / tokens:.4f} nats a token" in shown
    assert f"perplexity {math.exp(headline['nats'] / tokens):.3f}" in shown
    assert f"{headline['nats'] / math.log(2) / tokens:.4f} bits per byte on {tokens:,} tokens of test" in shown
    assert {point["context"] for point in record["points"]} == {4, 10}
    assert "keys and values cached" in shown


def test_compare_takes_folders_of_runs_and_says_how_far_context_reaches(folder: Path) -> None:
    runs = [str(folder / "runs" / name) for name in ("xl", "vanilla")]
    assert cli.main(["compare", *runs, "eval.recl_step=4", "eval.contexts=4,12", "eval.sample_targets=30"]) == 0
    record = json.loads((folder / "runs/report/report.json").read_text("utf-8"))
    lengths = {(found["model"], found["share"]): found for found in record["effective_context_lengths"]}
    assert set(lengths) == {(name, share) for name in ("xl", "vanilla") for share in (0.1, 0.5, 1.0)}
    assert all(found["step"] == 4 and found["length"] in (4, 8, 12) for found in lengths.values())
    page = (folder / "runs/report/report.html").read_text("utf-8")
    assert "Relative effective context length" in page
    assert "Where memory pays" in page


def test_eval_takes_a_kind_of_context_and_keeps_every_tokens_loss(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(folder / "runs/vanilla"), "--context", "4,8", "eval.sample_targets=25"]
    assert cli.main([*words, "--kind", "stride", "--stride", "3", "--split", "valid"]) == 0
    shown = capsys.readouterr().out
    assert "window moved by a stride" in shown
    assert "tokens/s" not in shown  # nothing was timed
    kept = folder / "runs/vanilla/report/eval/valid"
    assert f"the loss of every single token is in {kept}" in shown
    manifest = json.loads((kept / "stride-8-by-3.json").read_text("utf-8"))
    assert manifest["reading"]["context"] == 8
    assert len(manifest["facts"]["checkpoint_sha256"]) == 64
    assert (kept / "stride-8-by-3.npy").stat().st_size > 4 * manifest["targets"]
    assert cli.main([*words, "--kind", "stride"]) == 2
    assert "--stride: found None with kind stride; allowed: a whole number" in capsys.readouterr().err


def test_probe_says_how_far_back_runs_recall(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = folder / "probe.json"
    runs = [str(folder / "runs" / name) for name in ("xl", "vanilla")]
    assert cli.main(["probe", *runs, "--documents", "1", "--json", str(scores)]) == 0
    shown = capsys.readouterr()
    assert "receptive field" in shown.out
    assert shown.err.count("it was not trained on texts of this kind (data.train: recall)") == 2
    record = json.loads(scores.read_text("utf-8"))
    assert [entry["reach_tokens"] for entry in record["runs"]] == [20, 11]
    counted = [sum(p["answers"] for p in entry["found"]) for entry in record["runs"]]
    assert counted[0] == counted[1] > 1000
    assert cli.main(["probe", runs[0], "--documents", "0"]) == 2


@pytest.mark.parametrize("batch_size", [1, 7])
def test_eval_gives_the_same_for_every_batch_size(folder: Path, batch_size: int) -> None:
    scores = folder / f"scores-{batch_size}.json"
    words = [
        "eval",
        str(folder / "runs/xl"),
        "--split",
        "valid",
        "--batch-size",
        str(batch_size),
        "--json",
        str(scores),
    ]
    assert cli.main(words) == 0
    point = json.loads(scores.read_text("utf-8"))["points"][0]
    assert point["nats"] / point["tokens"] == pytest.approx(5.5, abs=0.5)
    other = folder / f"scores-{8 - batch_size}.json"
    if other.exists():
        assert point["nats"] == pytest.approx(json.loads(other.read_text("utf-8"))["points"][0]["nats"], rel=1e-6)


def test_eval_scores_other_text_with_the_tokenizer_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = (folder / "other.txt").stat().st_size
    assert cli.main(["eval", str(folder / "runs/xl"), f"data.test={folder / 'other.txt'}", "--window", "3"]) == 0
    shown = capsys.readouterr().out
    assert f"bits per byte on {size - 1:,} tokens of test" in shown


def test_eval_takes_memory_that_training_did_not_have(folder: Path) -> None:
    found = []
    for name, asked in (
        ("longer", ["model.mem_len=40"]),
        ("window", ["--window", "40"]),
        ("clamped", ["model.clamp_len=2"]),
    ):
        scores = folder / f"{name}.json"
        assert cli.main(["eval", str(folder / "runs/xl"), "--json", str(scores), *asked]) == 0
        found.append(json.loads(scores.read_text("utf-8"))["points"][0])
    assert found[0]["context"] == found[1]["context"] == 40
    assert found[0]["nats"] == found[1]["nats"] != found[2]["nats"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.max_steps=3"], "override train.max_steps=3: cannot be changed after training; allowed: data, eval"),
        (["model.n_layer=3"], "model.n_layer: found 3, trained with 2"),
        (["model.d_head=5"], "model.d_head: found 5, trained with 6"),
        (["model.clamp_len=0"], "model.clamp_len: found 0"),
        (["--context", "9,3"], "txl eval: --context: found"),
        (["--window", "-1"], "txl eval: --window: found -1; allowed: a whole number of at least 0 (or null)"),
        (["--kind", "block"], "--kind: found block without --context; allowed: with the contexts to score"),
        (
            ["--context", "4", "--stride", "2"],
            "--stride: found 2 with kind None; allowed: with --kind at-least or stride",
        ),
        (["data.test=nowhere.txt"], "nowhere.txt"),
        (["data.foo=1"], "data.foo: unknown key"),
    ],
)
def test_eval_refuses_with_code_2(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eval", str(folder / "runs/xl"), *words]) == 2
    assert message in capsys.readouterr().err


def test_generate_writes_the_same_text_for_the_same_seed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(folder / "runs/xl")
    texts = []
    for seed in ("3", "3", "4"):
        assert cli.main(["generate", run, "--prompt", "the river", "--max-new-tokens", "40", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) >= 10


def test_generate_reads_the_prompt_from_anywhere(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, prompt = str(folder / "runs/xl"), folder / "prompt.txt"
    prompt.write_text("under a grey café", encoding="utf-8")
    common = ["generate", run, "--greedy", "--max-new-tokens", "9"]
    texts = []
    for source in (["--prompt", "under a grey café"], ["--prompt-file", str(prompt)], ["--prompt-file", "-"], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompt.read_bytes())))
        assert cli.main([*common, *source]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        texts.append(shown.out)
    assert len(set(texts)) == 1


def test_generate_says_how_it_began_without_a_prompt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", str(folder / "runs/xl"), "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().err.startswith("no prompt: ")


def test_generate_ends_before_a_stop_string(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", str(folder / "runs/xl"), "--prompt", "the", "--seed", "1", "--max-new-tokens", "60"]
    assert cli.main(common) == 0
    whole = capsys.readouterr().out.removesuffix("\n")
    assert cli.main([*common, "--stop", whole[10:13]]) == 0
    assert capsys.readouterr().out.removesuffix("\n") == whole[: whole.index(whole[10:13])]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "-1"], "txl generate: --temperature is -1.0"),
        (["--top-k", "0"], "--top-k is 0"),
        (["--stop", ""], "--stop is"),
        (["--window", "-2"], "--window is -2"),
        (["--prompt", "a", "-"], "found --prompt and -; allowed: one of them"),
        (["--prompt-file", "nowhere"], "prompt nowhere: cannot be read (No such file or directory)"),
        (["--prompt-file", "bad.bin"], "prompt bad.bin: found a byte that is not UTF-8 at offset 1"),
        (["model.n_layer=3"], "model.n_layer: found 3, trained with 2"),
        (["optim.lr=1"], "cannot be changed after training"),
    ],
)
def test_generate_refuses_with_code_2(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "bad.bin").write_bytes(b"a\xff")
    assert cli.main(["generate", "runs/xl", *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("verb", ["eval", "generate"])
def test_what_is_no_run_is_refused(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, str(folder / "nowhere")]) == 2
    assert "no checkpoint here" in capsys.readouterr().err


def test_prepare_says_what_it_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prepare", str(folder / "tiny.yaml")]) == 0
    shown = capsys.readouterr().out
    size = (folder / "corpus.txt").stat().st_size
    rows = [line.split("│")[1:6] for line in shown.splitlines() if line.startswith("│")]
    counts = [[int(cell.strip().replace(",", "")) for cell in row[1:]] for row in rows if row[0].strip() != "split"]
    assert [row[0].strip() for row in rows if row[0].strip() != "split"] == ["train", "valid", "test"]
    assert sum(row[1] for row in counts) == sum(row[2] for row in counts) == size
    assert "vocabulary of 256; corpus " in shown


def test_validate_tells_what_a_run_would_be_and_keeps_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(folder / "tiny.yaml"), f"run.dir={folder / 'never'}"]) == 0
    shown = capsys.readouterr().out
    for fact in (
        "round trip",
        "exact on",
        "parameters",
        "reach",
        "20 tokens back",
        "first loss",
        "million FLOPs",
        "MB",
    ):
        assert fact in shown
    assert not (folder / "never").exists()


def test_train_says_what_comes_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(folder / "tiny.yaml")]) == 0
    assert f"{folder}/runs/xl is trained; next: txl eval {folder}/runs/xl" in capsys.readouterr().out


def test_missing_text_ends_with_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("prepare", "validate", "train"):
        run = f"run.dir={folder / verb}"
        assert cli.main([verb, str(folder / "tiny.yaml"), run, "data.train=nowhere.txt"]) == 2
        assert "nowhere.txt" in capsys.readouterr().err


def test_an_exported_run_comes_back_with_the_same_weights_and_tokenizer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out, back = str(folder / "runs" / "xl"), str(folder / "exported"), str(folder / "back")
    assert cli.main(["export", run, out, "--format", "transfo-xl"]) == 0
    assert f"{out}: step 6 of {run} as transfo-xl" in capsys.readouterr().out
    assert cli.main(["import", out, "--out", back]) == 0
    assert f"next: txl eval {back}" in capsys.readouterr().out
    first, second = load_run(run), load_run(back)
    assert second.model.config.initial_memory == "zeros"
    own = dict(first.model.named_parameters())
    assert own.keys() == dict(second.model.named_parameters()).keys()
    assert all(torch.equal(own[name], weight) for name, weight in second.model.named_parameters())
    text = "a grey bridge, naïve π"
    assert first.tokenizer.encode(text) == second.tokenizer.encode(text)
    text_there = [f"data.train={folder / 'corpus.txt'}", "data.split_by=position", f"data.cache_dir={folder / 'cache'}"]
    assert cli.main(["eval", back, *text_there]) == 0
    assert cli.main(["import", str(folder / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
