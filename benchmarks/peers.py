"""The models that are compared, at one shape: ours, Hugging Face's Transformer-XL (same weights), x-transformers.

`scripts/peers_env` installs the other two into build/peers, which this file puts on the path. Each is wrapped to do the
same three things: a training step, an evaluation step and one token, its memory carried from call to call. Hugging
Face's gets our very weights and its outputs are compared with ours before anything is timed; x-transformers' is the
nearest it offers, rotary positions and memory: not the same algebra.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import txl
from txl.config import ModelConfig
from txl.interop.settings import write_settings
from txl.interop.tensors import to_published

PLACE = Path(__file__).resolve().parents[1] / "build" / "peers"
VOCAB = 256


def add_to_path() -> None:
    """Put the peers' folder behind our own environment, transformers and its old hub library before it."""
    if not (PLACE / "peers").exists():
        raise SystemExit("the peers are not installed: run scripts/peers_env (about 100 MB), then this again")
    sys.path.insert(0, str(PLACE))
    warnings.filterwarnings("ignore")


def shape(tgt_len: int, mem_len: int, **more: Any) -> ModelConfig:
    """The model of every row: 4 layers, d 512, 8 heads of 64, inner 2048, the paper's positions and norms."""
    sizes = {"n_layer": 4, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048, "init_std": 0.02}
    return ModelConfig(**{**sizes, "tgt_len": tgt_len, "mem_len": mem_len, **more})


class Ours:
    """txl through its public contract; `cached` evaluation and tokens through `new_cache` and `advance`."""

    def __init__(self, config: ModelConfig, *, vocab_size: int = VOCAB) -> None:
        torch.manual_seed(1)
        self.model = txl.build_model(config, vocab_size)
        self.memory: Any = None
        self.cache: Any = None

    def train(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Forward, mean loss, backward, with the memory of the call before."""
        self.model.zero_grad(set_to_none=True)
        out = self.model(ids, memory=self.memory, targets=targets)
        self.memory = out.memory
        loss = out.nll.mean()
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Nats of the targets, keys and values of the past kept."""
        if self.cache is None:
            self.model.eval()
            self.cache = self.model.new_cache(len(ids), self.model.config.mem_len)
        return self.model.nll(self.model.advance(ids, self.cache), targets)

    @torch.no_grad()
    def token(self, ids: Tensor) -> Tensor:
        """Logits after one token a row."""
        if self.cache is None:
            self.model.eval()
            self.cache = self.model.new_cache(len(ids), self.model.config.mem_len)
        return self.model.logits(self.model.advance(ids, self.cache))


class Streaming:
    """The same model through `txl.Session`, the public way to stream: ids checked, numbers checked, recent ids kept."""

    def __init__(self, ours: Ours) -> None:
        self.model = ours.model
        self.session: txl.Session | None = None

    def token(self, ids: Tensor) -> Tensor:
        """Log-probabilities after one token a row."""
        if self.session is None:
            self.session = txl.Session(self.model, len(ids), self.model.config.mem_len)
        self.session.read(ids)
        return self.session.log_probs()


class HuggingFace:
    """transformers' TransfoXLLMHeadModel with the weights of ours."""

    def __init__(self, ours: Ours, *, compiled: bool = False) -> None:
        from transformers import TransfoXLConfig, TransfoXLLMHeadModel

        config = ours.model.config
        settings, _ = write_settings(config, ours.model.vocab_size, eos_id=None)
        self.model = TransfoXLLMHeadModel(TransfoXLConfig(**settings))
        self.model.load_state_dict(to_published(ours.model.state_dict(), config), strict=False)
        self.model.tie_weights()
        self.memory: Any = None
        self.call: Callable[..., Any] = torch.compile(self.model) if compiled else self.model

    def start_empty(self, n_rows: int) -> None:
        """Memory without rows, which is what ours begins with; theirs would begin with zeros that are attended."""
        self.memory = [torch.zeros(0, n_rows, self.model.config.d_model)] * self.model.config.n_layer

    def train(self, ids: Tensor, targets: Tensor) -> Tensor:
        """As ours; the library scores one target a row less. Its own loss fails under autocast, so there it gives the
        log-probabilities."""
        self.model.zero_grad(set_to_none=True)
        autocast = torch.is_autocast_enabled(ids.device.type)
        out = self.call(ids, mems=self.memory, labels=None if autocast else ids)
        self.memory = out.mems
        if autocast:
            loss = torch.nn.functional.nll_loss(out.prediction_scores.flatten(0, 1), targets.flatten())
        else:
            loss = out.losses.mean()
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Losses of a segment after its memory."""
        out = self.call(ids, mems=self.memory, labels=ids)
        self.memory = out.mems
        return out.losses

    @torch.no_grad()
    def token(self, ids: Tensor) -> Tensor:
        """Log-probabilities after one token a row."""
        out = self.call(ids, mems=self.memory)
        self.memory = out.mems
        return out.logits


class XTransformers:
    """x-transformers' decoder with rotary positions and memory, at the same sizes."""

    def __init__(self, config: ModelConfig, *, compiled: bool = False, flash: bool = True, **more: Any) -> None:
        from x_transformers import Decoder, TransformerWrapper

        torch.manual_seed(1)
        layers = Decoder(
            dim=config.d_model,
            depth=config.n_layer,
            heads=config.n_head,
            attn_dim_head=config.d_head,
            ff_mult=config.d_inner // config.d_model,
            rotary_pos_emb=True,
            attn_flash=flash,
            **more,
        )
        self.model = TransformerWrapper(
            num_tokens=VOCAB,
            max_seq_len=config.tgt_len + config.mem_len,
            max_mem_len=config.mem_len,
            use_abs_pos_emb=False,
            attn_layers=layers,
            tie_embedding=True,
        )
        self.memory: Any = None
        self.call: Callable[..., Any] = torch.compile(self.model) if compiled else self.model

    def _read(self, ids: Tensor) -> Tensor:
        logits, memory = self.call(ids, mems=self.memory, return_mems=True)
        self.memory = [rows.detach() for rows in memory]
        return logits

    def train(self, ids: Tensor, targets: Tensor) -> Tensor:
        """As ours."""
        self.model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self._read(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Losses of a segment after its memory."""
        logits = self._read(ids)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")

    @torch.no_grad()
    def token(self, ids: Tensor) -> Tensor:
        """Logits after one token a row."""
        return self._read(ids)


@torch.no_grad()
def largest_difference(ours: Ours, theirs: HuggingFace, ids: Tensor) -> float:
    """The largest difference of log-probabilities over two segments with memory; both start empty."""
    ours.model.eval()
    theirs.model.eval()
    theirs.start_empty(len(ids))
    memory, worst = None, 0.0
    for part in ids.chunk(2, dim=1):
        out = ours.model(part, memory=memory)
        memory = out.memory
        worst = max(worst, float((out.logits.log_softmax(-1) - theirs.token(part)).abs().max()))
    ours.model.train()
    theirs.model.train()
    theirs.memory = None
    return worst


def random_ids(n_rows: int, n_tokens: int, *, seed: int = 0, vocab_size: int = VOCAB) -> Tensor:
    """int64 rows×tokens, uniform."""
    return torch.randint(0, vocab_size, (n_rows, n_tokens), generator=torch.Generator().manual_seed(seed))
