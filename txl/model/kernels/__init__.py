"""Attention and products, one contract and several ways to compute it: tensors in, tensors out, no parameters."""
