"""Settings of a run: YAML and dotted overrides -> one frozen, checked `Config`.

Knows nothing of torch, data or models.
"""

from txl.config.checks import config_problems, model_problems
from txl.config.load import ConfigError, apply_overrides, load_config, to_yaml
from txl.config.schema import (
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    RuntimeConfig,
    TokenizerConfig,
    TrainConfig,
)

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "EvalConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "RuntimeConfig",
    "TokenizerConfig",
    "TrainConfig",
    "apply_overrides",
    "config_problems",
    "load_config",
    "model_problems",
    "to_yaml",
]
