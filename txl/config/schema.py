"""Every setting of a run: one frozen dataclass per YAML section, a sentence under each field.

YAML + dotted overrides -> `txl.config.load` -> `Config`. Knows nothing of torch, of data or of models: a value here
is only a number, a name or a path. What a combination of values may be is checked in `txl.config.checks`; nothing is
filled in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Arch = Literal["transformer_xl", "transformer", "lstm"]
Position = Literal["relative", "shaw", "rotary", "alibi", "learned", "sinusoidal", "none"]


@dataclass(frozen=True)
class RunConfig:
    """Where a run lives and what makes it repeatable."""

    dir: str = "runs/txl"
    """Folder of the run: config, environment, metrics, samples, checkpoints and report."""
    seed: int = 1111
    """Seed of weights, dropout, document order and samples."""
    resume: Literal["auto", "strict", "never"] = "auto"
    """auto: go on from the newest valid checkpoint; strict: refuse a damaged newest one; never: refuse a folder with
    checkpoints."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Experiment trackers that get every step's numbers too, each an extra to install; metrics.jsonl needs none."""


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Literal["byte", "char", "word", "bpe", "file"] = "byte"
    """byte: 256 values; char: code points; word: split at white space or punctuation; bpe: trained here; file: a
    tokenizer.json."""
    path: str | None = None
    """The tokenizer.json to use; only for kind file."""
    vocab_size: int = 8192
    """Size of the vocabulary to train; only for kind bpe."""
    min_count: int = 1
    """A symbol seen less often in the training split becomes <unk>; only for kinds char and word."""
    max_size: int | None = None
    """Largest vocabulary, most frequent first, specials included; null means all; only for kinds char and word."""
    split: Literal["whitespace", "punctuation"] = "whitespace"
    """Where words end: at white space alone, or also around each punctuation mark; only for kind word."""
    lowercase: bool = False
    """Whether text is lower-cased before counting and encoding; only for kinds char and word."""


@dataclass(frozen=True)
class DataConfig:
    """Where text comes from and how it is cut into parallel streams."""

    train: str = "stdlib"
    """A file, folder, glob, `hf:NAME[:CONFIG][@SPLIT]` (a Hugging Face data set), `stdlib` (this Python's library
    source), or `recall` (a made-up text that only memory predicts, for `txl probe`)."""
    mixture: tuple[str, ...] = ()
    """Several training sources in place of `train`, each after its weight, e.g. [2 books/, 1 code/]: of each epoch's
    tokens two thirds come from books/. `train` is not read then; `valid` and `test` must be named."""
    valid: str | None = None
    """The validation text, same grammar; null: taken from the training source."""
    test: str | None = None
    """The test text, same grammar; null: taken from the training source."""
    valid_fraction: float = 0.05
    """Share of the training source that becomes the validation split where none is named."""
    test_fraction: float = 0.05
    """Share of the training source that becomes the test split where none is named."""
    split_by: Literal["documents", "position"] = "documents"
    """How missing splits are made: whole documents drawn with `split_seed`, or by position (train, valid, test) in
    one long text."""
    split_seed: int = 0
    """Seed of the draw of documents for missing splits."""
    text_field: str = "text"
    """The field that holds the text in .jsonl, .parquet and Hugging Face sources."""
    document_pattern: str | None = None
    """A regular expression that heads each document inside a file (matched at line starts); null: a file is a
    document."""
    separator: str | None = None
    """A token put between documents, e.g. <eos>; null for none, which kind byte requires."""
    invalid_utf8: Literal["strict", "replace"] = "strict"
    """strict: refuse, naming file and byte offset; replace: put U+FFFD and count."""
    streaming: bool = False
    """Whether Hugging Face sources are read as a stream instead of downloaded first."""
    batch_size: int = 16
    """Parallel streams: rows of one optimizer step over all ranks and micro-batches."""
    reset_memory: bool = False
    """Whether memory starts anew at each document."""
    shuffle_documents: bool = False
    """Whether documents are shuffled anew each epoch; else they come in the order of sorted paths."""
    shuffle_segments: bool = False
    """Whether training segments come in an order drawn anew each epoch instead of as the text goes on."""
    segments_together: int = 1
    """With shuffle_segments, how many segments in a row stay together: 1 for models that keep no memory from one to
    the next, more for those that do, whose memory then starts anew after so many."""
    workers: int = 1
    """Processes that turn text into ids side by side when a corpus is prepared; the result does not depend on it."""
    cache_dir: str | None = None
    """Where prepared corpora are kept; null: `txl` in the user's cache folder."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the network, under the names of the published configurations."""

    arch: Arch = "transformer_xl"
    """transformer_xl; transformer, the vanilla fixed-context baseline; or lstm."""
    n_layer: int = 4
    """Layers."""
    d_model: int = 128
    """Width of the residual stream."""
    n_head: int = 4
    """Attention heads."""
    d_head: int = 32
    """Features a head; n_head * d_head need not be d_model."""
    d_inner: int = 512
    """Width inside the feed-forward block."""
    dropout: float = 0.0
    """Dropout on embeddings, positions, sub-layer outputs and inside the feed-forward block."""
    dropatt: float = 0.0
    """Dropout on attention probabilities."""
    position: Position = "relative"
    """relative: the paper's; shaw, rotary, alibi: with or without memory; learned, sinusoidal, none: absolute,
    without memory."""
    tgt_len: int = 128
    """Tokens of a training segment."""
    mem_len: int = 128
    """Positions of memory a layer may read besides its segment; 0 for no recurrence."""
    clamp_len: int | None = None
    """Distances beyond this one share its position vector; null for no clamp. With shaw the table holds this many
    distances, 0 to clamp_len - 1, and its last row serves all beyond."""
    same_length: bool = False
    """Whether every query in training sees the same number of earlier positions (mem_len)."""
    untie_r: bool = True
    """Whether each layer has its own bias_u and bias_v; else all share one pair."""
    pre_lnorm: bool = False
    """Whether normalisation comes before each sub-layer (with a final one at the end) instead of after it."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm or RMSNorm."""
    qk_norm: bool = False
    """Whether each head's queries and keys are normalised too, which keeps scores bounded as weights grow."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Non-linearity of the feed-forward block."""
    cutoffs: tuple[int, ...] | None = ()
    """Ids at which the vocabulary, most frequent first, is cut into clusters of the adaptive embedding and softmax;
    [] for one cluster, auto (or null) for cuts by shares of the training tokens."""
    div_val: int = 1
    """Each cluster's vectors are narrower than the one's before by this factor."""
    d_embed: int | None = None
    """Width of the first cluster's vectors before their projection; null: d_model."""
    tie_weight: bool = True
    """Whether the softmax shares the embedding's matrices."""
    tie_projs: Literal["all", "all_but_first", "none"] = "all"
    """Which clusters of the softmax share the embedding's projections."""
    init_std: float = 0.02
    """Standard deviation of the initial weights: as published; narrow models learn faster from wider ones, up to
    about d_model ** -0.5."""
    proj_init_std: float = 0.01
    """Standard deviation of the initial projections of embedding and softmax."""
    locked_dropout: bool = False
    """Whether dropout keeps one mask for all positions of a segment (variational dropout) instead of one a position."""
    activation_checkpointing: bool = False
    """Whether layers are computed again in the backward pass instead of kept: less memory, about a third more time."""
    initial_memory: Literal["empty", "zeros"] = "empty"
    """empty: nothing is attended before the first token; zeros: zero vectors are, as some imported checkpoints
    expect."""
    window_includes_self: bool = False
    """Whether the fixed window counts the query itself, as some imported checkpoints expect."""


@dataclass(frozen=True)
class TrainConfig:
    """How long to train and what to do on the way."""

    max_steps: int = 1000
    """Optimizer steps of the whole run."""
    init_from: str | None = None
    """A run folder or one of its checkpoints (`txl import` makes one of a published model) whose weights and tokenizer
    this run starts from; null: from scratch."""
    tgt_len_schedule: tuple[tuple[int, int], ...] = ()
    """Stages [step, tgt_len]: once so many steps are done segments have that many tokens, and memory is kept across;
    [[0, 32], [500, 64]] ends with model.tgt_len 64. [] for model.tgt_len throughout."""
    accumulate: int = 1
    """Micro-batches an optimizer step; they split rows, never time."""
    loss: Literal["full", "half"] = "full"
    """full: every position of a segment is a target; half: only those of its later half."""
    log_every: int = 10
    """Steps between two lines on the screen; metrics.jsonl has every step."""
    eval_every: int = 200
    """Steps between two validations; the last step always validates."""
    eval_tokens: int = 100_000
    """Tokens of the validation split scored at each validation, from its start; the final evaluation scores all."""
    sample_every: int = 0
    """Steps between two text samples; 0 for none but the last."""
    sample_tokens: int = 300
    """Tokens of a text sample."""
    save_every: int = 200
    """Steps between two checkpoints; the last step always saves."""
    keep_last: int = 2
    """Newest checkpoints kept; the best one by validation is kept besides."""
    keep_every: int = 0
    """Checkpoints of every so many steps are kept for good besides, as far as they were saved; 0 for none."""
    non_finite: Literal["raise", "skip"] = "raise"
    """What a loss or gradient that is not finite does: end the run (code 3), or skip the step."""
    max_skipped: int = 10
    """Skipped steps in a row after which the run ends all the same."""


@dataclass(frozen=True)
class OptimConfig:
    """How weights are updated."""

    name: Literal["adamw", "muon"] = "adamw"
    """adamw; muon: Muon for the matrices of the layers, AdamW for embedding, softmax, biases and norms."""
    lr: float = 1e-3
    """Peak learning rate."""
    min_lr: float = 0.0
    """Learning rate at the end of the schedule."""
    weight_decay: float = 0.0
    """Decoupled decay of weight matrices; never of biases, norms or embeddings."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    muon_lr: float = 0.02
    """Peak learning rate of Muon's matrices, which follows the same schedule; only for name muon."""
    muon_momentum: float = 0.95
    """Decay of Muon's momentum; only for name muon."""
    schedule: Literal["cosine", "linear", "wsd", "inverse_sqrt", "constant"] = "cosine"
    """Course of the rate after warm-up; wsd (warm-up, stable, decay) stays at the peak until the last decay_steps."""
    warmup_steps: int = 100
    """Steps of linear warm-up from 0."""
    decay_steps: int = 100
    """Steps of the fall from lr to min_lr at the end; only for schedule wsd."""
    clip: float = 0.25
    """Largest global gradient norm; 0 for no clipping."""
    ema_decay: float = 0.0
    """Decay of a running average of the weights, e.g. 0.999, which then is what is validated and loaded; 0 for none."""


@dataclass(frozen=True)
class EvalConfig:
    """How a trained model is measured."""

    window: int | None = None
    """Earlier positions each layer may see; null: the model's mem_len (tgt_len - 1 where that is 0)."""
    batch_size: int = 8
    """Streams scored side by side; the result does not depend on it."""
    contexts: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Context lengths of the curve."""
    sample_targets: int = 5000
    """Targets of a split scored where each one needs a fresh pass of its own (exactly so many tokens of context)."""
    recl_step: int | None = None
    """Step of the relative effective context length: contexts of so many tokens more each, up to the longest of
    `contexts`, are scored besides; null, or more than half the longest, for none."""
    max_tokens: int | None = None
    """Tokens of a split that are scored, from its start; null for all."""


@dataclass(frozen=True)
class RuntimeConfig:
    """On what the run runs: may differ between start and resume."""

    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where the hardware multiplies it natively, else fp32."""
    attention: Literal["auto", "reference", "blocked", "batched", "sdpa"] = "auto"
    """Attention backend; auto chooses by size, dtype and device. All give the same numbers, at different speeds."""
    products: Literal["auto", "torch", "onednn"] = "auto"
    """What multiplies float32 matrices on a CPU; auto: oneDNN where a short probe shows it exact and faster."""
    weights: Literal["full", "int8"] = "full"
    """int8: evaluation and streaming keep the layers' weights in 8 bits, a quarter of their bytes; not for training."""
    compile: bool = False
    """Whether training runs through torch.compile: one graph of fixed shapes, memory full-sized from the first segment;
    for GPUs."""
    shard: Literal["none", "full"] = "none"
    """With several processes: none, each has all weights (DDP); full, each keeps a part of every weight, gradient and
    moment (FSDP2)."""
    threads: int | None = None
    """CPU threads of a process; null leaves torch's own choice."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    run: RunConfig = field(default_factory=RunConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
