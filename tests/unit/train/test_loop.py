"""Parts of the loop: splitting, counting, validating, sampling, numbers that are not finite, and how a run ends."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import txl
from tests.runs import NO_DROPOUT, metrics, remains, stop_at, tensors, tiny
from txl.checkpoint import checkpoints
from txl.config import Config, TrainConfig, load_config
from txl.data import prepare
from txl.data.streams import SegmentBatch, Streams
from txl.runtime import Runtime
from txl.train import loop
from txl.train.loop import Preempted, due, is_finished, micro_batches, train


def batch(rows: int, length: int) -> SegmentBatch:
    numbers = torch.arange(rows * length).view(rows, length)
    return SegmentBatch(numbers, numbers + 100, numbers % 5 == 0)


def test_micro_batches_split_rows_never_time() -> None:
    parts = micro_batches(batch(6, 5), TrainConfig(accumulate=3))
    assert [part.inputs.shape for part in parts] == [(2, 5)] * 3
    for name in ("inputs", "targets", "resets"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch(6, 5), name))


@pytest.mark.parametrize(("length", "left"), [(5, [2, 3, 4]), (4, [2, 3]), (1, [0])])
def test_half_the_loss_leaves_the_later_half_of_every_segment(length: int, left: list[int]) -> None:
    whole = batch(2, length)
    (part,) = micro_batches(whole, TrainConfig(loss="half"))
    expected = torch.full((2, length), -100)
    expected[:, left] = whole.targets[:, left]
    assert torch.equal(part.targets, expected)
    assert (whole.targets >= 0).all()  # what the loader gave is as it was


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.arch=transformer", "model.mem_len=0", "model.position=learned"),
        (
            *("model.arch=lstm", "model.mem_len=0", "model.position=none", "model.cutoffs=[100,120]"),
            *("model.n_head=4", "model.d_head=32", "model.d_inner=512"),  # the defaults, for nothing reads them
        ),
    ],
    ids=["transformer_xl", "transformer", "lstm"],
)
def test_half_the_loss_is_that_of_the_later_half_with_memory_of_the_whole_segment(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    config = tiny(tmp_path, *NO_DROPOUT, "train.loss=half", "optim.lr=1e-30", "train.max_steps=4", *overrides)
    train(config)
    model, ids = txl.load(config.run.dir).model, prepare(config).train
    streams = Streams(ids.ids, ids.document_starts, batch_size=4, tgt_len=7)
    memory, expected = None, []
    for _, segment in zip(range(4), streams, strict=False):
        out = model(segment.inputs, memory, targets=segment.targets)
        memory = out.memory
        expected.append(out.nll[:, 3:].mean().item())
    assert [line["nll"] for line in metrics(config.run.dir)] == pytest.approx(expected, abs=1e-5)


def test_automatic_cutoffs_are_chosen_once_and_kept(tmp_path: Path) -> None:
    config = tiny(tmp_path, "model.cutoffs=auto", "train.max_steps=4")
    train(config)
    chosen = txl.load(config.run.dir).config.model.cutoffs
    assert chosen
    assert load_config(Path(config.run.dir) / "config.yaml").model.cutoffs == chosen
    assert is_finished(config)
    more = replace(config, train=replace(config.train, max_steps=5))
    assert train(more).step == 5
    assert txl.load(config.run.dir).config.model.cutoffs == chosen


def test_due_every_so_many_steps_and_never_for_0() -> None:
    assert [step for step in range(1, 10) if due(step, 3)] == [3, 6, 9]
    assert not any(due(step, 0) for step in range(10))


def test_the_log_has_a_line_a_step_with_all_that_was_promised(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.max_steps=4", "train.loss=half", "optim.clip=0.01", train_bytes=110)
    train(config)
    lines = metrics(config.run.dir, without=())
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert line["bits"] == pytest.approx(line["nll"] / math.log(2)) == line["bits_per_byte"]
        assert line["grad_norm"] > 0.01  # before clipping
        assert 0 < line["mfu"] < 1
        assert line["tokens_per_second"] > 0
        assert line["skipped"] == 0
    # Four streams of 28, 27, 27, 27 pairs in segments of 7: every position counts as a token, scored or not.
    assert [line["tokens"] for line in lines] == [28, 56, 84, 109]
    assert [line["epoch"] for line in lines] == pytest.approx([28 / 110, 56 / 110, 84 / 110, 109 / 110])
    assert lines[0]["nll"] == pytest.approx(math.log(256), abs=0.2)
    # Two layers of four rows and at most nine positions of width 12 in float32, and a length a row.
    assert [line["memory_bytes"] for line in lines] == [2 * 4 * n * 12 * 4 + 4 * 8 for n in (7, 9, 9, 9)]
    elapsed = [line["elapsed_seconds"] for line in lines]
    assert elapsed == sorted(elapsed)
    assert lines[3]["valid_tokens"] == 60
    assert lines[3]["valid_bits_per_byte"] == pytest.approx(lines[3]["valid_nll"] / math.log(2))


@pytest.mark.parametrize("clip", [0.0, 0.25])
def test_the_step_is_taken_with_gradients_clipped_to_the_norm_and_0_clips_nothing(
    clip: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms, step = [], Runtime.step

    def noted(self: Runtime, optimizer: torch.optim.Optimizer) -> bool:
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        norms.append(math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients)))
        return step(self, optimizer)

    monkeypatch.setattr(Runtime, "step", noted)
    config = tiny(tmp_path, f"optim.clip={clip}", "train.max_steps=4")
    train(config)
    logged = [line["grad_norm"] for line in metrics(config.run.dir)]
    assert min(logged) > 0.25
    assert norms == pytest.approx(logged if clip == 0 else [0.25] * 4, rel=1e-4)


def test_validation_is_evaluation_of_the_split_s_beginning_and_the_end_scores_all_of_it(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.max_steps=5", "train.save_every=5")
    result = train(config)
    bundle = txl.load(config.run.dir)
    ids = torch.tensor(list(Path(str(config.data.valid)).read_bytes()))
    part, whole = txl.evaluate(bundle.model, ids[:61]), txl.evaluate(bundle.model, ids)
    assert metrics(config.run.dir)[-1]["valid_nll"] == pytest.approx(part.nats / 60, abs=1e-6)
    assert result.valid_nll == pytest.approx(whole.nats / 149, abs=1e-6)
    recorded = json.loads((Path(config.run.dir) / "result.json").read_text())
    assert recorded["valid_nll"] == result.valid_nll
    assert (recorded["step"], recorded["valid_tokens"], recorded["best_step"]) == (5, 149, 5)


def test_segments_grow_by_the_schedule_over_text_and_memory_that_go_on(tmp_path: Path) -> None:
    still = ("optim.lr=1e-12", "model.dropout=0", "model.dropatt=0", "train.sample_every=0")
    config = tiny(tmp_path, *still, "train.max_steps=7", "train.tgt_len_schedule=[[0,3],[4,7]]", train_bytes=110)
    train(config)
    lines, model = metrics(config.run.dir), txl.load(config.run.dir).model
    # 109 pairs in four streams, the first one longer: four segments of 3, two of 7, and of the 28 tokens 2 are left.
    assert [line["tokens"] for line in lines] == [12, 24, 36, 48, 76, 104, 109]
    documents = sorted(Path(config.data.train).iterdir())
    ids = torch.tensor(list(b"".join(path.read_bytes() for path in documents)))
    first = [0, 28, 55, 82, 109]
    memory, losses, begin = None, [], 0
    for length in (3, 3, 3, 3, 7, 7, 2):
        rows = range(begin, begin + length)
        inputs, targets = torch.zeros(4, length, dtype=torch.int64), torch.full((4, length), -100)
        for row in range(4):
            for column, at in enumerate(rows):
                if first[row] + at < first[row + 1]:
                    inputs[row, column], targets[row, column] = ids[first[row] + at], ids[first[row] + at + 1]
        out = model(inputs, memory=memory, targets=targets)
        memory, begin = out.memory, begin + length
        losses.append(float(out.nll.detach().sum()) / int((targets >= 0).sum()))
    assert [line["nll"] for line in lines] == pytest.approx(losses, abs=1e-5)


def test_bits_per_byte_count_the_bytes_that_the_scored_targets_stand_for(tmp_path: Path) -> None:
    still = ("optim.lr=1e-12", "model.dropout=0", "model.dropatt=0", "train.sample_every=0", "train.max_steps=4")
    pairs = ("tokenizer.kind=bpe", "tokenizer.vocab_size=270", "train.loss=half")
    config = tiny(tmp_path, *still, *pairs, train_bytes=700)
    train(config)
    split = prepare(config).train
    streams = Streams(split.ids, split.document_starts, batch_size=4, tgt_len=7)
    lengths = {token: len(txl.load(config.run.dir).tokenizer.decode([token])) for token in range(270)}
    for line in metrics(config.run.dir):
        later = next(streams).targets[:, 3:]
        bytes_each = sum(lengths[token] for token in later.flatten().tolist()) / later.numel()
        assert 1.3 < bytes_each < 2.5
        assert line["bits_per_byte"] == pytest.approx(line["bits"] / bytes_each)


def test_averaged_weights_are_those_of_the_steps_and_what_is_validated_sampled_and_loaded(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.max_steps=4", "train.save_every=1", "train.keep_last=9", "optim.ema_decay=0.5")
    result = train(config)
    weights = [tensors(config.run.dir, step, "model") for step in range(1, 5)]
    average = weights[0]
    for decay, now in zip((3 / 12, 4 / 13, 5 / 14), weights[1:], strict=True):
        average = {name: decay * average[name] + (1 - decay) * now[name] for name in now}
    bundle = txl.load(config.run.dir)
    for name, tensor in bundle.model.state_dict().items():
        torch.testing.assert_close(tensor, average[name], atol=1e-6, rtol=1e-5)
        assert not torch.equal(tensor, weights[3][name])
    ids = torch.tensor(list(Path(str(config.data.valid)).read_bytes()))
    assert result.valid_nll == pytest.approx(txl.evaluate(bundle.model, ids).nats / 149, abs=1e-6)
    part = txl.evaluate(bundle.model, ids[:61]).nats / 60
    assert metrics(config.run.dir)[-1]["valid_nll"] == pytest.approx(part, abs=1e-6)
    session = txl.Session(bundle.model)
    session.feed(ids[None, :64])
    written = bundle.tokenizer.decode([int(step[0]) for step in session.generate(6, seed=5 + 4)])
    assert (Path(config.run.dir) / "samples.txt").read_text().endswith(f"{written}\n\n")


def test_with_resets_in_training_validation_resets_at_documents_too(tmp_path: Path) -> None:
    few = ("train.max_steps=4", "train.eval_every=100", "model.dropout=0", "model.dropatt=0")
    config = tiny(tmp_path, *few, "data.reset_memory=true")
    folder = tmp_path / "two"
    folder.mkdir()
    texts = [b"abc abc " * 9, b"bca bca " * 10]
    for number, content in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(content)
    result = train(replace(config, data=replace(config.data, valid=str(folder))))
    model = txl.load(config.run.dir).model
    ids = torch.tensor(list(b"".join(texts)))
    resets = torch.zeros(len(ids), dtype=torch.bool)
    resets[72] = True
    assert result.valid_nll == pytest.approx(txl.evaluate(model, ids, resets=resets).nats / 151, abs=1e-6)


def test_a_sample_goes_on_from_the_validation_split_and_repeats_with_the_seed(tmp_path: Path) -> None:
    config = tiny(tmp_path, "train.max_steps=4", "train.sample_every=0", "train.sample_tokens=11", "optim.lr=1e-6")
    train(config)
    written = (Path(config.run.dir) / "samples.txt").read_text()
    prompt = Path(str(config.data.valid)).read_bytes()[:64]
    assert written.startswith(f"=== step 4: prompt ===\n{prompt.decode()}\n=== step 4: the model ===\n")
    assert written.count("===") == 4
    bundle = txl.load(config.run.dir)
    session = txl.Session(bundle.model)
    session.feed(torch.tensor([list(prompt)]))
    ids = [int(ids[0]) for ids in session.generate(11, seed=5 + 4)]
    assert written.endswith(f"=== step 4: the model ===\n{bundle.tokenizer.decode(ids)}\n\n")


def test_a_finished_run_ends_at_once_and_goes_on_when_given_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(tmp_path, "train.max_steps=4")
    first = train(config)
    assert is_finished(config)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "begin", None)
        assert train(config) == first
    assert "done before, 4 steps" in capsys.readouterr().out.splitlines()[-1]
    longer: Config = tiny(tmp_path, "train.max_steps=6")
    assert not is_finished(longer)
    assert not is_finished(tiny(tmp_path, "train.max_steps=4", "optim.lr=0.02"))
    assert train(longer).step == 6
    (checkpoints(config.run.dir)[0] / "rng.json").unlink()
    assert not is_finished(longer)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    runs = [
        tiny(tmp_path, "train.max_steps=4", f"run.seed={seed}", run=name)
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    for config in runs:
        train(config)
    a, b, c = (remains(config.run.dir, 4) for config in runs)
    assert a == b
    assert a["metrics"] != c["metrics"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.arch=transformer", "model.position=sinusoidal", "model.mem_len=0"),
        ("model.arch=lstm", "model.position=none", "model.mem_len=0"),
        ("model.pre_lnorm=true", "model.same_length=true", "runtime.precision=bf16"),
    ],
)
def test_every_architecture_and_bf16_train_save_and_go_on(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "model.arch=lstm" in overrides:
        overrides += ("model.n_head=4", "model.d_head=32", "model.d_inner=512", "model.dropatt=0")
    settings = (*overrides, "train.max_steps=6", "train.eval_every=3")
    whole, parts = tiny(tmp_path, *settings, run="whole"), tiny(tmp_path, *settings, run="parts")
    train(whole)
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(Preempted):
            train(parts)
    train(parts)
    assert remains(whole.run.dir, 6) == remains(parts.run.dir, 6)
    losses = [line["nll"] for line in metrics(whole.run.dir)]
    assert losses[-1] < losses[0]
