"""How weights are updated: the optimizer, the learning rate of each step, and the optimizer's memory by parameter name.

config.optim and a model -> AdamW; a step -> its rate, a pure function. Knows nothing of losses, loops or files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from txl.checkpoint import CheckpointError
from txl.config import OptimConfig

UNDECAYED = ("bias", "table")
"""In the names of what is added to a score (bias_u, biases) or looked up (tables of tokens, positions, distances)."""


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Fused AdamW whose decay touches weight matrices alone: never biases, norms, embeddings or tables of positions."""
    decayed = decayed_parameters(model)
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if name in decayed], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def decayed_parameters(model: nn.Module) -> set[str]:
    """Names of the parameters that are multiplied as matrices: not those that are looked up or added (`UNDECAYED`)."""
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim >= 2 and id(parameter) not in looked_up and not any(word in name for word in UNDECAYED)
    }


def learning_rate(step: int, config: OptimConfig, max_steps: int) -> float:
    """The rate of step k of N, steps counted from 1: lr/w first, the peak at step w, `min_lr` last (cosine).

    With w warm-up steps: lr · k/w while k <= w, and after that
        constant      lr
        cosine        min_lr + (lr - min_lr)/2 · (1 + cos(π (k - w)/(N - w)))
        inverse_sqrt  lr · sqrt(w/k), at least min_lr (w = 0 counts as 1)
    Beyond N it stays what it was at N. It depends on nothing else: a run that goes on has the rate it would have had.
    """
    warmup = config.warmup_steps
    step = min(step, max_steps)
    if step < warmup:
        return config.lr * step / warmup
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse_sqrt":
        return max(config.min_lr, config.lr * math.sqrt(max(warmup, 1) / max(step, 1)))
    progress = (step - warmup) / (max_steps - warmup)
    return config.min_lr + (config.lr - config.min_lr) / 2 * (1 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Write the rate into every group; no scheduler keeps a count of its own that could run apart."""
    for group in optimizer.param_groups:
        group["lr"] = rate


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
