"""Every impossible combination is named, with what was found and what is allowed; none is named by mistake."""

from __future__ import annotations

import pytest

from txl.config import Config, ConfigError, apply_overrides, config_problems, model_problems

# overrides: the start of the one problem, and what its sentence on the way out must contain
IMPOSSIBLE = [
    ("model.d_model=33", "model.d_model: found 33 with model.position relative", "even"),
    (
        "model.d_model=33 model.position=sinusoidal model.mem_len=0",
        "model.d_model: found 33 with model.position sinus",
        "even",
    ),
    ("model.position=rotary model.d_head=41", "model.d_head: found 41 with model.position rotary", "even"),
    ("model.position=learned", "model.mem_len: found 128 with model.position learned", "0 (equal positions"),
    (
        "model.position=sinusoidal",
        "model.mem_len: found 128 with model.position sinusoidal",
        "relative, shaw, rotary, alibi",
    ),
    ("model.position=none", "model.mem_len: found 128 with model.position none", "0"),
    ("model.arch=transformer model.position=sinusoidal", "model.mem_len: found 128 with model.arch transformer", "0"),
    ("model.div_val=2", "model.div_val: found 2, which does nothing without model.cutoffs", "1"),
    (
        "model.cutoffs=10,20 model.div_val=12",
        "model.div_val: found 12, which leaves the last of 3 clusters no feature of 128",
        "smaller factor",
    ),
    ("model.d_embed=128", "model.d_embed: found 128, which is model.d_model", "null"),
    ("model.cutoffs=9 model.tie_projs=none", "model.tie_projs: found 'none', which does nothing", "'all'"),
    ("model.proj_init_std=0.5", "model.proj_init_std: found 0.5, which does nothing without projections", "0.01"),
    ("model.locked_dropout=true", "model.locked_dropout: found true, which does nothing with model.dropout 0", "false"),
    ("model.arch=lstm model.mem_len=0", "model.position: found relative with model.arch lstm", "none"),
    ("model.arch=lstm model.position=none", "model.mem_len: found 128 with model.arch lstm", "0"),
    (
        "model.arch=lstm model.position=none model.mem_len=0 model.n_head=2",
        "model.n_head: found 2, which does nothing",
        "4",
    ),
    ("model.mem_len=0 model.same_length=true", "model.same_length: found true with model.mem_len 0", "false"),
    (
        "model.mem_len=0 model.initial_memory=zeros",
        "model.initial_memory: found 'zeros', which does nothing",
        "'empty'",
    ),
    (
        "model.mem_len=0 model.window_includes_self=true",
        "model.window_includes_self: found true, which does nothing",
        "false",
    ),
    (
        "model.position=rotary model.clamp_len=9",
        "model.clamp_len: found 9, which does nothing with model.position rotary",
        "null",
    ),
    (
        "model.position=rotary model.untie_r=false",
        "model.untie_r: found false, which does nothing",
        "true (leave it out)",
    ),
    (
        "data.batch_size=10 train.accumulate=4",
        "data.batch_size: found 10, not divisible by train.accumulate 4",
        "multiple of 4",
    ),
    ("train.keep_every=300", "train.keep_every: found 300 with train.save_every 200", "a multiple of train.save_every"),
    ("train.loss=half model.tgt_len=1", "train.loss: found half with model.tgt_len 1", "at least 2 tokens"),
    ("train.max_skipped=3", "train.max_skipped: found 3, which does nothing with train.non_finite raise", "10"),
    ("optim.warmup_steps=1000", "optim.warmup_steps: found 1000", "fewer than train.max_steps, 1000"),
    ("optim.min_lr=0.01", "optim.min_lr: found 0.01", "at most optim.lr, 0.001"),
    ("optim.schedule=constant optim.min_lr=1e-5", "optim.min_lr: found 1e-05, which does nothing", "0.0"),
    (
        "optim.decay_steps=50",
        "optim.decay_steps: found 50, which does nothing with optim.schedule cosine (only with wsd)",
        "100",
    ),
    ("optim.schedule=wsd optim.decay_steps=901", "optim.decay_steps: found 901", "at most 900, the steps of train.max"),
    (
        "optim.muon_lr=0.1",
        "optim.muon_lr: found 0.1, which does nothing with optim.name adamw (only with muon)",
        "0.02",
    ),
    (
        "train.tgt_len_schedule=[[0,16],[500,64]]",
        "train.tgt_len_schedule: found [[0, 16], [500, 64]] with model.tgt_len 128",
        "a last stage of 128 tokens",
    ),
    (
        "train.tgt_len_schedule=[[0,16],[1000,128]]",
        "train.tgt_len_schedule: found [[0, 16], [1000, 128]]",
        "begins before train.max_steps, 1000",
    ),
    (
        "model.position=learned model.mem_len=0 train.tgt_len_schedule=[[0,200],[500,128]]",
        "train.tgt_len_schedule: found [[0, 200], [500, 128]] with model.position learned",
        "at most 128 tokens",
    ),
    (
        "train.loss=half train.tgt_len_schedule=[[0,1],[500,128]]",
        "train.loss: found half with segments of 1 token",
        "at least 2 tokens",
    ),
    (
        "data.shuffle_segments=true",
        "data.segments_together: found 1 with data.shuffle_segments true and model.mem_len 128",
        "2 or more, for memory is of the text right before a segment",
    ),
    (
        "data.shuffle_segments=true model.arch=lstm model.position=none model.mem_len=0",
        "data.segments_together: found 1 with data.shuffle_segments true and model.arch lstm",
        "2 or more, for memory is of the text right before a segment",
    ),
    (
        "data.segments_together=4",
        "data.segments_together: found 4, which does nothing with data.shuffle_segments false",
        "1 (leave it out)",
    ),
    (
        "data.shuffle_segments=true model.mem_len=0 train.tgt_len_schedule=[[0,16],[500,128]]",
        "data.shuffle_segments: found true with train.tgt_len_schedule",
        "segments of one length",
    ),
    ("optim.muon_momentum=0.9", "optim.muon_momentum: found 0.9, which does nothing with optim.name adamw", "0.95"),
    ("tokenizer.kind=file", "tokenizer.path: found null with tokenizer.kind file", "tokenizer.json"),
    ("tokenizer.path=t.json", "tokenizer.path: found 't.json', which does nothing with tokenizer.kind byte", "null"),
    ("tokenizer.kind=word tokenizer.path=t.json", "tokenizer.path: found 't.json', which does nothing", "null"),
    ("tokenizer.vocab_size=500", "tokenizer.vocab_size: found 500, which does nothing", "8192"),
    ("tokenizer.kind=word tokenizer.vocab_size=500", "tokenizer.vocab_size: found 500, which does nothing", "8192"),
    ("tokenizer.kind=bpe tokenizer.min_count=2", "tokenizer.min_count: found 2, which does nothing", "1"),
    ("tokenizer.max_size=99", "tokenizer.max_size: found 99, which does nothing", "null"),
    (
        "tokenizer.kind=char tokenizer.split=punctuation",
        "tokenizer.split: found 'punctuation', which does nothing",
        "only with",
    ),
    ("tokenizer.lowercase=true", "tokenizer.lowercase: found true, which does nothing", "only with char or word"),
    ("data.separator=<eos>", "data.separator: found '<eos>' with tokenizer.kind byte", "null"),
    ("data.valid_fraction=0", "data.valid_fraction: found 0 without data.valid", "above 0"),
    ("data.test_fraction=0", "data.test_fraction: found 0 without data.test", "above 0"),
    (
        "data.valid_fraction=0.5 data.test_fraction=0.5",
        "data.valid_fraction: found 0.5, with data.test_fraction",
        "below 1",
    ),
    ("data.valid=v data.valid_fraction=0.2", "data.valid_fraction: found 0.2, which does nothing", "0.05"),
    ("data.train=a data.valid=a", "data.valid: found the training text, 'a'", "other text"),
    ("data.train=a data.test=a", "data.test: found the training text, 'a'", "other text"),
    ("data.train=hf:a@train data.valid=hf:a@train", "data.valid: found the training text, 'hf:a@train'", "other text"),
    (
        "data.valid=v data.test=t data.split_by=position",
        "data.split_by: found 'position', which does nothing",
        "'documents'",
    ),
    ("data.split_by=position data.split_seed=4", "data.split_seed: found 4, which does nothing", "0"),
    ("data.streaming=true", "data.streaming: found true, which does nothing without a Hugging Face source", "false"),
    (
        "model.position=learned model.mem_len=0 eval.window=128",
        "eval.window: found 128 with model.position learned",
        "at most 127",
    ),
    ("runtime.compile=true runtime.shard=full", "runtime.compile: found true with runtime.shard full", "false"),
    ("runtime.compile=true runtime.attention=blocked", "runtime.attention: found blocked with runtime.compile", "sdpa"),
    ("runtime.compile=true model.cutoffs=auto", "runtime.compile: found true with clusters", "false"),
    ("runtime.shard=full optim.name=muon", "optim.name: found muon with runtime.shard full", "adamw"),
    ("runtime.shard=full optim.ema_decay=0.9", "optim.ema_decay: found 0.9 with runtime.shard full", "0"),
    ("runtime.device=cpu runtime.precision=fp16", "runtime.precision: found fp16 with runtime.device cpu", "bf16"),
]
POSSIBLE = [
    "model.d_model=410 model.n_head=10 model.d_head=41 model.d_inner=2100",
    "model.d_model=33 model.position=shaw",
    "model.d_model=33 model.position=learned model.mem_len=0",
    "model.d_head=41 model.position=alibi",
    "model.position=sinusoidal model.mem_len=0",
    "model.arch=transformer model.position=none model.mem_len=0",
    "model.arch=transformer model.position=learned model.mem_len=0 eval.window=127",
    "model.arch=lstm model.position=none model.mem_len=0 model.n_layer=2 model.dropout=0.2",
    "model.position=shaw model.clamp_len=9",
    "model.arch=transformer model.mem_len=0",
    "model.cutoffs=10,20 model.div_val=4 model.tie_projs=all_but_first model.proj_init_std=0.02",
    "model.d_embed=64 model.tie_projs=none",
    "model.dropout=0.1 model.locked_dropout=true model.activation_checkpointing=true",
    "data.batch_size=12 train.accumulate=4",
    "train.non_finite=skip train.max_skipped=3",
    "train.tgt_len_schedule=[[0,16],[500,128]]",
    "train.tgt_len_schedule=[[0,512],[500,128]]",
    "data.shuffle_segments=true model.mem_len=0",
    "data.shuffle_segments=true data.segments_together=2",
    "data.shuffle_segments=true data.segments_together=16 model.arch=lstm model.position=none model.mem_len=0",
    "optim.schedule=wsd optim.decay_steps=900",
    "optim.name=muon optim.muon_lr=0.01 optim.muon_momentum=0.9 optim.ema_decay=0.999",
    "train.max_steps=1 optim.warmup_steps=0",
    "tokenizer.kind=file tokenizer.path=t.json",
    "tokenizer.kind=bpe tokenizer.vocab_size=500 data.separator=<eos>",
    "tokenizer.kind=word tokenizer.min_count=3 tokenizer.max_size=99 tokenizer.split=punctuation",
    "tokenizer.kind=char tokenizer.min_count=3 tokenizer.lowercase=true",
    "data.train=a data.valid=b data.test=c",
    "data.train=hf:a data.valid=hf:a data.streaming=true",
    "data.train=a data.valid=b data.split_by=position",
    "data.split_seed=5",
    "data.valid=v data.test_fraction=0.95",
    "runtime.device=cuda runtime.precision=fp16",
]


@pytest.mark.parametrize(("overrides", "start", "way_out"), IMPOSSIBLE, ids=[case[0] for case in IMPOSSIBLE])
def test_an_impossible_combination_is_named(overrides: str, start: str, way_out: str) -> None:
    with pytest.raises(ConfigError) as caught:
        assert config_problems(apply_overrides(Config(), overrides.split())) == []
    (problem,) = caught.value.problems
    place, _, sentence = problem.partition(f"{start.split(':')[0]}:")
    assert place == "" or place.startswith("override ")
    found, allowed = f"{start.split(':')[0]}:{sentence}".split("; allowed")
    assert found.startswith(start)
    assert way_out in found + allowed


@pytest.mark.parametrize("name", ["model.cutoffs", "vocab_size"])
def test_what_a_vocabulary_cannot_hold_is_named(name: str) -> None:
    model = apply_overrides(Config(), ["model.cutoffs=10,20"]).model
    assert model_problems(model, vocab_size=21) == []
    assert model_problems(Config().model, vocab_size=2) == []
    expected = {
        "model.cutoffs": "model.cutoffs: found [10, 20] with a vocabulary of 20; allowed: ids below 20, so that every "
        "cluster has a token",
        "vocab_size": "vocab_size: found 1; allowed: at least 2 symbols, else there is nothing to predict",
    }
    found = (
        model_problems(model, vocab_size=20)
        if name == "model.cutoffs"
        else model_problems(Config().model, vocab_size=1)
    )
    assert found == [expected[name]]


@pytest.mark.parametrize("overrides", POSSIBLE)
def test_a_possible_combination_is_not_refused(overrides: str) -> None:
    assert config_problems(apply_overrides(Config(), overrides.split())) == []
