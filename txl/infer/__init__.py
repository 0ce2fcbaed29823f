"""Streaming inference: ids or text of any length in, nats or more text out, in constant memory; no paths, no data."""

from txl.infer.beam import beam_search
from txl.infer.generate import generate_text, generate_texts, opening_note, read_prompts
from txl.infer.sampling import Sampling
from txl.infer.session import Session

__all__ = [
    "Sampling",
    "Session",
    "beam_search",
    "generate_text",
    "generate_texts",
    "opening_note",
    "read_prompts",
]
