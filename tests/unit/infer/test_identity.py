"""Fingerprints: the same for the same model, another for any other."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from tests.models import BASE, make_model
from txl.infer.identity import fingerprint
from txl.model.int8 import to_int8
from txl.model.kernels.linear import Linear


def test_only_what_changes_a_result_changes_the_fingerprint() -> None:
    model = make_model(BASE)
    own = fingerprint(model)
    assert (own.shape, own.dtype) == ((32,), torch.uint8)
    for fields in ({"dropout": 0.5}, {"mem_len": 3}, {"tgt_len": 9}, {"same_length": True}):
        assert torch.equal(fingerprint(make_model(replace(BASE, **fields))), own)  # type: ignore[arg-type]
    others = [make_model(replace(BASE, clamp_len=4)), make_model(BASE, seed=1), make_model(BASE, dtype=torch.float32)]
    nearly = copy.deepcopy(model)
    with torch.no_grad():
        list(nearly.parameters())[3].view(-1)[1] += 1e-12
    digests = {bytes(fingerprint(other).tolist()) for other in (model, nearly, *others)}
    assert len(digests) == 5


def test_8_bit_weights_are_part_of_it() -> None:
    digests = set()
    for level in (1.0, 2.0):
        model = make_model(BASE, dtype=torch.float32)
        with torch.no_grad():
            next(module for module in model.modules() if isinstance(module, Linear)).weight.mul_(level)
        digests.add(bytes(fingerprint(model).tolist()))
        to_int8(model)
        digests.add(bytes(fingerprint(model).tolist()))
    assert len(digests) == 4
