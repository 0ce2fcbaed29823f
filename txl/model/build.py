"""From a ModelConfig to an initialised network; the checks are those of a YAML file.

Knows nothing of checkpoints: weights read from a file replace these.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from txl.config import ConfigError, ModelConfig, model_problems
from txl.model.attention import Attention, RelativeBiases
from txl.model.embedding import Embedding
from txl.model.layers import Stack
from txl.model.lstm import LSTM
from txl.model.softmax import Softmax
from txl.model.transformer import Transformer
from txl.model.transformer_xl import TransformerXL

Model = TransformerXL | Transformer | LSTM


def build_model(config: ModelConfig, vocab_size: int) -> Model:
    """The network that `config` describes, initialised from torch's global generator.

    Raises ConfigError, a ValueError, naming every impossible value.
    """
    problems = model_problems(config, vocab_size=vocab_size)
    if problems:
        raise ConfigError(problems)
    architectures: dict[str, type[Model]] = {"transformer_xl": TransformerXL, "transformer": Transformer, "lstm": LSTM}
    model = architectures[config.arch](config, vocab_size)
    initialise(model, config)
    return model


def fit_tables(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights trained with other lengths, their finite tables cut or extended to this model's.

    A table of distances (shaw) uses its last row for every distance beyond it, so it grows by copies of that row; a
    table of positions (learned) is cut, and left alone where it would have to grow, for nothing was learned there.
    """
    own = model.state_dict()
    fitted = dict(weights)
    for name, table in weights.items():
        if name not in own or not name.endswith(("distance_table", "position_table")):
            continue
        wanted, held = own[name].shape[0], table.shape[0]
        if name.endswith("distance_table") or wanted < held:
            fitted[name] = table[torch.arange(wanted).clamp(max=held - 1)]
    return fitted


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Every weight from N(0, init_std) (an LSTM's as torch draws them), projections of embedding and softmax from
    N(0, proj_init_std), every norm's gain from N(1, init_std), every bias 0, as the published code
    has it."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=config.init_std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            nn.init.normal_(module.weight, mean=1.0, std=config.init_std)
            if isinstance(module, nn.LayerNorm) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, RelativeBiases):
            nn.init.normal_(module.bias_u, std=config.init_std)
            nn.init.normal_(module.bias_v, std=config.init_std)
        elif isinstance(module, Attention) and module.position == "shaw":
            nn.init.normal_(module.distance_table, std=config.init_std)
        elif isinstance(module, Stack) and config.position == "learned":
            nn.init.normal_(module.position_table, std=config.init_std)
        elif isinstance(module, Embedding | Softmax):
            for table in module.tables if isinstance(module, Embedding) else module.weights:
                nn.init.normal_(table, std=config.init_std)
            for projection in module.projections:
                nn.init.normal_(projection, std=config.proj_init_std)
            if isinstance(module, Softmax) and module.cluster_weight is not None:
                nn.init.normal_(module.cluster_weight, std=config.init_std)
