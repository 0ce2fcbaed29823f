"""Evaluation for a while: modules in, no dropout and no gradient inside. Knows nothing of what is computed there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """No gradients and no dropout inside; each module is in the mode it was in afterwards, frozen parts too.

    modules: all of a model's, `model.modules()`, for the flag of a parent is not asked by its children.
    """
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
