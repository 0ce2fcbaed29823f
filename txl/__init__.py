"""The public names of txl, each loaded when first used: `import txl` loads no torch.

A name -> the module it lives in -> the object. Knows nothing of what the objects do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txl.checkpoint import load_run as load
    from txl.config import (
        Config,
        ConfigError,
        DataConfig,
        EvalConfig,
        ModelConfig,
        OptimConfig,
        RunConfig,
        RuntimeConfig,
        TokenizerConfig,
        TrainConfig,
        load_config,
    )
    from txl.evaluation.perplexity import evaluate
    from txl.infer.session import Session
    from txl.model import Memory, Output, build_model

__version__ = "0.1.0"

_HOMES = {
    "Config": "txl.config",
    "ConfigError": "txl.config",
    "DataConfig": "txl.config",
    "EvalConfig": "txl.config",
    "ModelConfig": "txl.config",
    "OptimConfig": "txl.config",
    "RunConfig": "txl.config",
    "RuntimeConfig": "txl.config",
    "TokenizerConfig": "txl.config",
    "TrainConfig": "txl.config",
    "load_config": "txl.config",
    "Memory": "txl.model",
    "Output": "txl.model",
    "build_model": "txl.model",
    "Session": "txl.infer.session",
    "evaluate": "txl.evaluation.perplexity",
    "load": "txl.checkpoint",
}
_NAMES_THERE = {"load": "load_run"}

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "EvalConfig",
    "Memory",
    "ModelConfig",
    "OptimConfig",
    "Output",
    "RunConfig",
    "RuntimeConfig",
    "Session",
    "TokenizerConfig",
    "TrainConfig",
    "__version__",
    "build_model",
    "evaluate",
    "load",
    "load_config",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'txl' has no attribute {name!r}; it offers {', '.join(sorted(_HOMES))}")
    value = getattr(importlib.import_module(_HOMES[name]), _NAMES_THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
