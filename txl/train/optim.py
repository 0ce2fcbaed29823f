"""How weights are updated: the optimizer, its rate, averaged weights, and the optimizer's memory by parameter name.

config.optim and a model -> AdamW, or Muon beside it. Knows nothing of losses, schedules, loops or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from txl.checkpoint import AVERAGE, CheckpointError
from txl.config import OptimConfig
from txl.train.muon import Muon

UNDECAYED = ("bias", "table")
"""In the names of what is added to a score (bias_u, biases) or looked up (tables of tokens, positions, distances)."""
OF_A_LAYER = "layers."
"""In the names of what transforms hidden states, which Muon updates: neither embedding nor softmax."""


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, or Muon for the matrices of the layers and AdamW for all else; decay touches weight matrices alone.

    Muon (Jordan 2024) replaces the momentum of a matrix by the nearest orthogonal one, so its rate, `muon_lr` at the
    peak, is a size of step and no multiple of AdamW's; both follow the one schedule.
    """
    decayed, named = decayed_parameters(model), dict(model.named_parameters())
    muon = {name for name in decayed if config.name == "muon" and OF_A_LAYER in name}
    groups = [
        {"params": [p for name, p in named.items() if name in decayed - muon], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
    if not muon:
        return adamw
    momentum, decay = config.muon_momentum, config.weight_decay
    matrices = [parameter for name, parameter in named.items() if name in muon]
    both = MuonBesideAdamW(Muon(matrices, lr=config.muon_lr, momentum=momentum, weight_decay=decay), adamw)
    for group in both.param_groups[:1]:
        group["share"] = config.muon_lr / config.lr
    return both


class MuonBesideAdamW(torch.optim.Optimizer):
    """Muon and AdamW as one optimizer: one state by parameter, the groups of both, one step for the scaler of fp16."""

    def __init__(self, muon: Muon, adamw: torch.optim.AdamW) -> None:
        self.muon, self.adamw = muon, adamw
        super().__init__([*muon.param_groups, *adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all parameters; whoever loads a state puts new groups here, so the two get theirs at each step."""
        assert closure is None
        n_muon = len(self.muon.param_groups)
        for part, groups in ((self.muon, self.param_groups[:n_muon]), (self.adamw, self.param_groups[n_muon:])):
            part.param_groups, part.state = groups, self.state
            part.step()


def decayed_parameters(model: nn.Module) -> set[str]:
    """Names of the parameters that are multiplied as matrices: not those that are looked up or added (`UNDECAYED`)."""
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and not any(word in name for word in UNDECAYED)
    }


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Write the rate into every group, Muon's in its own measure; no scheduler keeps a count that could run apart."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)


def average_weights(parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Move each parameter's average, which stands beside its moments, towards its value; it begins as that value."""
    for parameter in parameters:
        state = optimizer.state[parameter]
        if AVERAGE in state:
            state[AVERAGE].lerp_(parameter.detach(), 1 - decay)
        else:
            state[AVERAGE] = parameter.detach().clone()


@contextmanager
def averaged(parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, parameters that have an average hold it; afterwards they are what they were, to the bit."""
    pairs = [(p, optimizer.state[p][AVERAGE]) for p in parameters if AVERAGE in optimizer.state.get(p, {})]
    _swap(pairs)
    try:
        yield
    finally:
        _swap(pairs)


@torch.no_grad()
def _swap(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Exchange the numbers of each two tensors, with room for one more alone."""
    for one, other in pairs:
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors as `moment.parameter.name`: independent of groups, order and number of processes."""
    return {
        f"{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Take over what `optimizer_state` gave; nothing at all where no step was taken yet.

    Raises CheckpointError where a parameter has no state or one of another shape, or where state has no parameter.
    """
    parameters = dict(model.named_parameters())
    found: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition(".")
        if name not in found or tensor.shape not in (parameters[name].shape, torch.Size([])):
            raise CheckpointError(
                f"optimizer.safetensors: {full_name} of shape {tuple(tensor.shape)} belongs to no parameter of this "
                "model; was the checkpoint written by another version?"
            )
        found[name][key] = tensor
    without = [name for name, state in found.items() if not state]
    if tensors and without:
        raise CheckpointError(
            f"optimizer.safetensors: no state for {', '.join(without[:5])}; every parameter needs one"
        )
    for name, parameter in parameters.items():
        if tensors:
            optimizer.state[parameter] = {
                # a copy of its own, laid out as the parameter is: training must not write into a mapped file
                key: torch.empty_like(parameter, dtype=t.dtype).copy_(t)
                if t.ndim
                else t.to(parameter.device, copy=True)
                for key, t in found[name].items()
            }
