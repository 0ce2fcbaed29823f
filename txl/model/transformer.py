"""The vanilla baseline: the same decoder without memory, so that recurrence is the only thing a comparison changes.

ids B×T -> Output whose memory is always empty. Knows nothing of streams, optimizers or files.
"""

from __future__ import annotations

from txl.model.transformer_xl import TransformerXL


class Transformer(TransformerXL):
    """A fixed-context Transformer: every segment is read as if nothing came before it."""
