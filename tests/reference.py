"""The paper, and its LSTM baseline, as slow plain loops over one row of text: the measure of every law. Shares no code
with the package.

ids, weights by name and an explicit rule of who sees whom -> logits and layer inputs, all float64 numpy. Each score
is computed for one head, one query and one key from the equation; nothing is shifted, masked or batched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Decoded:
    """logits (or log-probabilities) T×V, hidden T×D, and for each layer the inputs of the segment, T×D."""

    logits: Array
    hidden: Array
    inputs: list[Array]


def decode(
    config: Any,
    weights: dict[str, Array],
    ids: list[int],
    *,
    past: list[Array] | None = None,
    resets: list[bool] | None = None,
    window: int | None = None,
) -> Decoded:
    """Read `ids` after the valid memory rows `past` (one M×D array a layer).

    A query at key p sees the keys p - window … p (window None: all up to p), but none before the newest reset at or
    before it. An LSTM has neither past nor window.
    """
    if config.arch == "lstm":
        return decode_lstm(config, weights, ids, resets or [False] * len(ids))
    n_past = len(past[0]) if past else 0
    resets = resets or [False] * len(ids)
    x = np.stack([embed(config, weights, token, position(resets, t)) for t, token in enumerate(ids)])
    inputs = []
    for layer in range(config.n_layer):
        inputs.append(x)
        before = past[layer] if past else np.zeros((0, config.d_model))
        seen = [
            [
                j
                for j in range(n_past + i + 1)
                if (window is None or n_past + i - j <= window)
                and all(not resets[t] or n_past + t <= j for t in range(i + 1))
            ]
            for i in range(len(ids))
        ]
        x = apply_layer(config, named(weights, f"stack.layers.{layer}."), weights, np.concatenate([before, x]), seen)
    if config.pre_lnorm:
        x = np.stack([normalise(config, named(weights, "stack.final_norm."), row) for row in x])
    return Decoded(np.stack([scores(config, weights, row) for row in x]), x, inputs)


def decode_lstm(config: Any, weights: dict[str, Array], ids: list[int], resets: list[bool]) -> Decoded:
    """The equations of an LSTM cell, gates in the order input, forget, cell, output; h and c restart at each reset."""
    weights = {f"stack.{name}" if name.startswith("embedding.") else name: w for name, w in weights.items()}
    fresh = (np.zeros(config.d_model), np.zeros(config.d_model))
    state = [fresh] * config.n_layer
    hidden = []
    for token, begins in zip(ids, resets, strict=True):
        state = [fresh] * config.n_layer if begins else state
        x = vector_of(config, weights, token) * math.sqrt(config.d_model)
        for layer, (h, c) in enumerate(state):
            w = named(weights, f"layers.{layer}.")
            gates = w["weight_ih_l0"] @ x + w["bias_ih_l0"] + w["weight_hh_l0"] @ h + w["bias_hh_l0"]
            i, f, g, o = np.split(gates, 4)
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            x = np.tanh(c) / (1 + np.exp(-o))
            state = [*state[:layer], (x, c), *state[layer + 1 :]]
        hidden.append(x)
    return Decoded(np.stack([scores(config, weights, row) for row in hidden]), np.stack(hidden), [])


def cluster_of(config: Any, token: int) -> tuple[int, int]:
    """The cluster a token lies in, and its row there."""
    index = sum(token >= cut for cut in config.cutoffs)
    return index, token - (0, *config.cutoffs)[index]


def vector_of(config: Any, weights: dict[str, Array], token: int) -> Array:
    """The embedding of a token: its row, projected where there are projections."""
    index, row = cluster_of(config, token)
    vector: Array = weights[f"stack.embedding.tables.{index}"][row]
    projection = weights.get(f"stack.embedding.projections.{index if config.div_val > 1 else 0}")
    return vector if projection is None else projection @ vector


def scores(config: Any, weights: dict[str, Array], hidden: Array) -> Array:
    """Logits of every token, or with cutoffs the log of its probability, one token at a time."""
    n_clusters = len(config.cutoffs) + 1
    own = {"all": 0, "all_but_first": 1, "none": n_clusters}[config.tie_projs]
    logits = []
    for index in range(n_clusters):
        place = "head" if index < own else "stack.embedding"
        number = 0 if place == "stack.embedding" and config.div_val == 1 else index
        projection = weights.get(f"{place}.projections.{number}")
        narrow = hidden if projection is None else np.array([column @ hidden for column in projection.T])
        table = weights[f"{'stack.embedding.tables' if config.tie_weight else 'head.weights'}.{index}"]
        rows = [row @ narrow + bias for row, bias in zip(table, weights[f"head.biases.{index}"], strict=True)]
        if index == 0 and n_clusters > 1:
            extra = zip(weights["head.cluster_weight"], weights["head.cluster_bias"], strict=True)
            rows += [row @ narrow + bias for row, bias in extra]
        logits.append(rows)
    if n_clusters == 1:
        return np.array(logits[0])
    shares = [[score - math.log(sum(math.exp(s) for s in rows)) for score in rows] for rows in logits]
    first = config.cutoffs[0]
    rare = [shares[0][first + index - 1] + share for index in range(1, n_clusters) for share in shares[index]]
    return np.array(shares[0][:first] + rare)


def position(resets: list[bool], t: int) -> int:
    """Positions counted from the newest reset, or from the first token."""
    starts = [s for s in range(t + 1) if resets[s]]
    return t - (starts[-1] if starts else 0)


def named(weights: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The weights below a prefix, under their short names."""
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def sinusoid(p: int, width: int) -> Array:
    """Sines, then cosines, of p over the wavelengths 10000^(2i/width)."""
    angle = [p / 10000 ** (2 * i / width) for i in range(width // 2)]
    return np.array([math.sin(a) for a in angle] + [math.cos(a) for a in angle])


def embed(config: Any, weights: dict[str, Array], token: int, p: int) -> Array:
    """Scaled embedding, plus the position's vector for absolute schemes."""
    vector: Array = vector_of(config, weights, token) * math.sqrt(config.d_model)
    if config.position == "sinusoidal":
        return vector + sinusoid(p, config.d_model)
    if config.position == "learned":
        learned: Array = weights["stack.position_table"][p]
        return vector + learned
    return vector


def normalise(config: Any, weights: dict[str, Array], x: Array) -> Array:
    """LayerNorm or RMSNorm of one vector."""
    if config.norm == "layer":
        centred = x - x.mean()
        x, shift = centred, weights.get("bias", np.zeros(len(x)))
    else:
        shift = np.zeros(len(x))
    scaled: Array = x / math.sqrt((x**2).mean() + 1e-5) * weights["weight"] + shift
    return scaled


def apply_layer(config: Any, w: dict[str, Array], model: dict[str, Array], rows: Array, seen: list[list[int]]) -> Array:
    """One layer for the last len(seen) of `rows`; query i sees the rows seen[i]."""
    n_past = len(rows) - len(seen)
    norm_1, norm_2 = named(w, "attention_norm."), named(w, "feed_forward_norm.")
    source = np.stack([normalise(config, norm_1, row) for row in rows]) if config.pre_lnorm else rows
    out = []
    for i, keys in enumerate(seen):
        p = n_past + i
        mixed = np.concatenate([attend(config, w, model, source, p, keys, head) for head in range(config.n_head)])
        x = rows[p] + w["attention.o_proj.weight"] @ mixed
        if not config.pre_lnorm:
            x = normalise(config, norm_1, x)
        y = x + feed_forward(config, w, normalise(config, norm_2, x) if config.pre_lnorm else x)
        out.append(y if config.pre_lnorm else normalise(config, norm_2, y))
    return np.stack(out)


def attend(
    config: Any, w: dict[str, Array], model: dict[str, Array], rows: Array, p: int, keys: list[int], head: int
) -> Array:
    """The weighted values of one head for the query at row p: a softmax over the keys it sees."""
    size = config.d_head
    part = slice(head * size, (head + 1) * size)
    q, k, v = (w[f"attention.{name}_proj.weight"][part] for name in "qkv")
    query, own = q @ rows[p], [k @ rows[j] for j in keys]
    if config.qk_norm:
        query = normalise(config, named(w, "attention.q_norm."), query)
        own = [normalise(config, named(w, "attention.k_norm."), key) for key in own]
    scores = [score(config, w, model, query, key, p, j, head) for key, j in zip(own, keys, strict=True)]
    top = max(scores)
    exps = [math.exp(s - top) for s in scores]
    total: Array = sum(e / sum(exps) * (v @ rows[j]) for e, j in zip(exps, keys, strict=True))
    return total


def score(
    config: Any, w: dict[str, Array], model: dict[str, Array], q: Array, k: Array, p: int, j: int, head: int
) -> float:
    """The number before the softmax for a query at p and a key at j, by the equation of the scheme."""
    size = config.d_head
    distance = p - j if config.clamp_len is None else min(p - j, config.clamp_len)
    if config.position == "relative":
        part = slice(head * size, (head + 1) * size)
        r = w["attention.r_proj.weight"][part] @ sinusoid(distance, config.d_model)
        u, b = (
            w[f"attention.biases.{name}"][head] if config.untie_r else model[f"stack.biases.{name}"][head]
            for name in ("bias_u", "bias_v")
        )
        return float((q + u) @ k + (q + b) @ r) / math.sqrt(size)
    if config.position == "shaw":
        table = w["attention.distance_table"]
        return float(q @ (k + table[min(distance, len(table) - 1)][head])) / math.sqrt(size)
    if config.position == "rotary":
        return float(turn(q, p) @ turn(k, j)) / math.sqrt(size)
    if config.position == "alibi":
        return float(q @ k) / math.sqrt(size) - 2 ** (-8 * (head + 1) / config.n_head) * distance
    return float(q @ k) / math.sqrt(size)


def turn(x: Array, p: int) -> Array:
    """Rotate the pair (x_i, x_{i + E/2}) by p / 10000^(2i/E)."""
    half = len(x) // 2
    out = np.zeros(len(x))
    for i in range(half):
        angle = p / 10000 ** (2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[half + i] * math.sin(angle)
        out[half + i] = x[half + i] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def feed_forward(config: Any, w: dict[str, Array], x: Array) -> Array:
    """The position-wise network."""
    inner = w["feed_forward.in_proj.weight"] @ x + w["feed_forward.in_proj.bias"]
    if config.activation == "relu":
        inner = np.maximum(inner, 0)
    elif config.activation == "gelu":
        inner = np.array([a * 0.5 * (1 + math.erf(a / math.sqrt(2))) for a in inner])
    else:
        gate = w["feed_forward.gate_proj.weight"] @ x + w["feed_forward.gate_proj.bias"]
        inner = gate / (1 + np.exp(-gate)) * inner
    out: Array = w["feed_forward.out_proj.weight"] @ inner + w["feed_forward.out_proj.bias"]
    return out
