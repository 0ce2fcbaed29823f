"""Weights in parts: each process keeps one part of every weight, gradient and moment (FSDP2); what is saved is whole.

A model -> the same model whose parameters are DTensors, gathered where they are used; tensors of either kind <-> whole
tensors of a checkpoint, which does not show how many processes wrote it. Knows nothing of steps, losses or files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from txl.checkpoint import load_weights, weights
from txl.config import Config
from txl.model import Model, build_model, use_attention
from txl.runtime import Runtime


def sharded(model: Model, runtime: Runtime) -> Model:
    """The model itself, on the device, its parameters shared out to all processes.

    Each nn.Linear is a unit that is gathered when it is called; what is read past a module's call (tables of embedding
    and softmax, norms, biases) is gathered for the whole step. torch's own `fully_shard` on GPUs and CPUs alike, since
    Accelerate takes DDP on a CPU without a word. All processes must have made the same weights. In one process nothing
    is shared out.
    """
    if runtime.world == 1:
        return model
    model.to(runtime.device)
    # Nothing here writes into what a module gave; that its gradients are right is a test.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(runtime.device.type, (runtime.world,))
    for module in list(model.modules()):
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Whole tensors of what may be shards, one after the other; all processes call it, those that `keep` get them."""
    found = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor().to("cpu") if isinstance(tensor, DTensor) else tensor
        if keep:
            found[name] = whole
    return found


def shared_out(
    tensors: Mapping[str, Tensor], model: nn.Module, *, parameter_of: Callable[[str], str] = lambda name: name
) -> dict[str, Tensor]:
    """Whole tensors as the model's parameters are: where one is in parts, this process's part of what belongs to it.

    parameter_of: from the name of a tensor to that of its parameter; a tensor of another shape stays whole.
    """
    like = weights(model)
    laid_out = {}
    for name, tensor in tensors.items():
        target = like.get(parameter_of(name))
        if isinstance(target, DTensor) and target.shape == tensor.shape:
            whole = tensor.to(target.device)
            tensor = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
        laid_out[name] = tensor
    return laid_out


def whole_model(model: Model, config: Config, runtime: Runtime, *, vocab_size: int) -> Model:
    """A model that can be called by one process alone: the model itself, or a whole copy of one that is in parts.

    All processes call it together; a copy has the weights of this moment.
    """
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return model
    with torch.random.fork_rng(devices=[]):
        copy = build_model(config.model, vocab_size)
    load_weights(copy, gathered(weights(model), keep=True))
    use_attention(copy, config.runtime.attention)
    return copy.to(runtime.device).train(model.training)
