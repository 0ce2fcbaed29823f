"""The networks: token ids and a Memory in, an Output out; they know nothing of files, tokenizers, optimizers or
processes.

Axes, the same letters in every pattern, docstring and comment:

    B  parallel streams             T  positions of the segment (`tgt_len`)
    M  positions in memory          S  keys a query may see: M + T, oldest first
    H  heads                        E  features a head (`d_head`)
    D  width of the residual stream F  width inside the feed-forward block
    V  vocabulary                   L  layers
"""

from txl.model.attention import use_attention
from txl.model.build import Model, build_model, fit_tables
from txl.model.int8 import to_int8
from txl.model.kernels.linear import use_products
from txl.model.memory import Memory
from txl.model.output import Output

__all__ = ["Memory", "Model", "Output", "build_model", "fit_tables", "to_int8", "use_attention", "use_products"]
