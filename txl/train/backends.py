"""What computes a run's products and attention: chosen by `runtime`, said once, and never a slow one in silence.

Knows nothing of data, optimizers or how a step is taken.
"""

from __future__ import annotations

import torch

from txl.config import Config, ConfigError
from txl.model import Memory, Model, use_attention, use_products
from txl.model.kernels.attend import Backend, choose
from txl.model.kernels.linear import chosen
from txl.model.lstm import LSTM
from txl.runtime import Runtime
from txl.train.state import Run


def use_backends(model: Model, config: Config) -> None:
    """Let the model compute as `runtime` says. Raises ConfigError for weights that cannot be trained."""
    if config.runtime.weights != "full":
        found = f"found {config.runtime.weights}; allowed: full in training (evaluation and streaming take int8)"
        raise ConfigError([f"runtime.weights: {found}"])
    use_products(config.runtime.products)
    use_attention(model, config.runtime.attention)


def compile_to_one_graph(model: Model) -> None:
    """Run the model's forward through torch.compile, one graph for each shape of a segment.

    What cannot be one graph, and a shape too many, are errors of torch, never a slow run (`fullgraph`).
    """
    use_attention(model, "sdpa")
    model.compile(dynamic=False, fullgraph=True)


def cold_memories(run: Run) -> tuple[Memory, ...]:
    """Memory of full size and no valid row for each micro-batch: so all segments of a compiled run have one shape."""
    n_rows = run.config.data.batch_size // run.runtime.world // run.config.train.accumulate
    assert not isinstance(run.bare, LSTM)
    return tuple(run.bare.cold_memory(n_rows) for _ in range(run.config.train.accumulate))


def describe_backends(run: Run) -> str:
    """What computes attention and products in training, in one line."""
    config, runtime = run.config, run.runtime
    on_cpu_in_fp32 = runtime.device.type == "cpu" and runtime.precision == "fp32"
    parts = [f"attention: {attention_of(config, runtime)}"]
    parts.append(f"products: {chosen() if on_cpu_in_fp32 else 'torch'} ({config.runtime.products})")
    return ", ".join([*parts, *(["compiled to one graph"] if config.runtime.compile else [])])


def attention_of(config: Config, runtime: Runtime) -> str:
    """The backend of attention in training, and whether it was chosen here or asked for."""
    model, asked = config.model, config.runtime.attention
    if model.arch == "lstm":
        return "none"
    name: Backend = "sdpa" if config.runtime.compile else asked
    if name == "auto":
        name = choose(
            runtime.device.type,
            torch.float32 if runtime.precision == "fp32" else torch.bfloat16,
            n_queries=model.tgt_len,
            n_keys=model.tgt_len + model.mem_len,
            learning=True,
            distances_learned=model.position in ("relative", "shaw"),
            dropped=model.dropatt > 0,
        )
    if name == "sdpa" and model.dropatt > 0:
        return f"reference ({asked}; torch's fused kernels do not drop attention weights by a mask, model.dropatt)"
    return f"{name} ({asked})"
