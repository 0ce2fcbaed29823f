"""Streaming inference: ids or text of any length in, nats or more text out, in constant memory; no paths, no data."""

from txl.infer.generate import generate_text, opening_note
from txl.infer.sampling import Sampling
from txl.infer.session import Session

__all__ = ["Sampling", "Session", "generate_text", "opening_note"]
