"""What a config needs on many processes, by arithmetic: rows, tokens, bytes of each, and whether streams share out.

Config, parameters, processes -> `Plan`; a corpus -> the streams of every process, checked against those of one. Knows
nothing of devices: a config for 64 GPUs is checked on a laptop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from txl.config import Config
from txl.data import Corpus, DataError, Streams

WIDE_BYTES = 4
"""Of a weight, a gradient, a moment, a number of segment memory: float32 in every precision."""
MOMENTS = 2
"""AdamW keeps two numbers a weight."""


@dataclass(frozen=True)
class Plan:
    """One optimizer step of a config on `world` processes.

    rows: parallel streams of one process.  micro_rows: those of one micro-batch.  step_tokens: positions a step trains
    on, over all processes.  context_tokens: positions of segment memory over all processes, a layer.  *_bytes: of one
    process; sent_bytes: what it sends to others a step.
    """

    world: int
    rows: int
    micro_rows: int
    step_tokens: int
    context_tokens: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    memory_bytes: int
    sent_bytes: int

    def facts(self) -> list[tuple[str, str]]:
        """Name and value, in words, of what several processes have."""
        tokens = f"{self.step_tokens:,} tokens behind {self.context_tokens:,} of memory a layer"
        return [
            ("processes", f"{self.world}, each with {self.rows} rows, {self.micro_rows} a micro-batch"),
            ("a step", f"{tokens}; each process sends {self.sent_bytes / 1e6:,.1f} MB"),
        ]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of one process besides activations."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.memory_bytes


def plan(config: Config, *, n_parameters: int, world: int) -> Plan:
    """The plan of a config whose rows can be shared out (`check_rows`).

    P parameters, W processes, B rows, M positions of memory, L layers of width D. Each process holds 4P bytes of
    weights, of gradients and of each moment, or with runtime.shard full a W-th of them (and weights whole while they
    are used); 4·L·(B/W)·M·D of memory. A ring exchange of gradients sends 2(W-1)/W · 4P bytes from each process; in
    parts, weights are gathered twice and gradients scattered once: 3(W-1)/W · 4P.
    """
    model, rows = config.model, config.data.batch_size // world
    parts = world if config.runtime.shard == "full" else 1
    held = math.ceil(WIDE_BYTES * n_parameters / parts)
    exchanges = 3 if parts > 1 else 2
    return Plan(
        world=world,
        rows=rows,
        micro_rows=rows // config.train.accumulate,
        step_tokens=config.data.batch_size * model.tgt_len,
        context_tokens=config.data.batch_size * model.mem_len,
        weight_bytes=held,
        gradient_bytes=held,
        optimizer_bytes=MOMENTS * held,
        memory_bytes=WIDE_BYTES * model.n_layer * rows * model.mem_len * model.d_model,
        sent_bytes=exchanges * (world - 1) * WIDE_BYTES * n_parameters // world,
    )


def training_streams(corpus: Corpus, config: Config, *, rank: int = 0, world: int = 1) -> Streams:
    """The rows of the training split that this process of `world` is to learn from, as the config orders them."""
    data = config.data
    return Streams(
        corpus.train.ids,
        corpus.train.document_starts,
        batch_size=data.batch_size,
        tgt_len=config.model.tgt_len,
        rank=rank,
        world=world,
        reset_memory=data.reset_memory,
        shuffle_documents=data.shuffle_documents,
        shuffle_segments=data.shuffle_segments,
        segments_together=data.segments_together,
        seed=config.run.seed,
        mixture=corpus.train.mixture,
        vocab_size=corpus.tokenizer.vocab_size,
    )


def check_partition(corpus: Corpus, config: Config, *, world: int) -> str:
    """Serve the first, a middle and the last segment of an epoch to `world` processes and to one; a sentence about it.

    Raises DataError unless the rows of all processes, one under the other, are those of one process.
    """

    alone = training_streams(corpus, config)
    together = [training_streams(corpus, config, rank=rank, world=world) for rank in range(world)]
    targets, shared, segments, served = alone.targets, sum(one.targets for one in together), len(alone), 0
    for segment in sorted({0, segments // 2, segments - 1}):
        position = {"epoch": 0, "token": segment * config.model.tgt_len}
        for one in (alone, *together):
            one.seek(position)
        whole, parts = next(alone), [next(one) for one in together]
        for name in ("inputs", "targets", "resets"):
            if not torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])):
                raise DataError(f"streams: {name} of segment {segment} differ between {world} processes and one")
        served += sum(int((part.targets != -100).sum()) for part in parts)
    if targets != shared:
        raise DataError(f"streams: {world} processes have {shared:,} targets an epoch, one has {targets:,}")
    streams_are = f"{targets:,} targets an epoch in {config.data.batch_size} streams, each once"
    return f"{streams_are}; {served:,} of them compared with those of one process"
