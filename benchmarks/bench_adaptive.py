"""The adaptive loss at V = 267,735, forward and backward, ours against Hugging Face's (row T3).

python -m benchmarks.bench_adaptive [--threads N] [--rounds N] -> a table, one JSON line. 1,024 hidden states of width
512, the published cutoffs, targets drawn by Zipf's law; both with the same weights, losses compared first.
"""

from __future__ import annotations

import torch

import txl
from benchmarks import peers
from benchmarks.timing import Row, finish, options, set_up, take_turns

VOCAB = 267_735
CUTOFFS = (20_000, 40_000, 200_000)
TOKENS = 1024


def main() -> None:
    """Time div_val 1 and 2."""
    asked = set_up(options(__doc__))
    peers.add_to_path()
    finish("bench_adaptive", [measure(div_val, asked.rounds) for div_val in (1, 2)])


def measure(div_val: int, rounds: int) -> Row:
    """One row."""
    config = peers.shape(TOKENS, 0, cutoffs=CUTOFFS, div_val=div_val, n_layer=1)
    torch.manual_seed(1)
    model = txl.build_model(config, VOCAB)
    theirs = peers.HuggingFace(peers.Ours(config, vocab_size=VOCAB)).model.crit
    draw = torch.Generator().manual_seed(2)
    shares = 1.0 / torch.arange(1, VOCAB + 1, dtype=torch.float64)
    targets = torch.multinomial(shares, TOKENS, replacement=True, generator=draw)
    hidden = torch.randn(1, TOKENS, config.d_model, generator=draw)

    def ours() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        x = hidden.clone().requires_grad_()
        nll = model.nll(x, targets[None])
        nll.mean().backward()
        return nll.detach()

    def hugging_face() -> torch.Tensor:
        theirs.zero_grad(set_to_none=True)
        x = hidden.clone().requires_grad_()
        shifted = torch.cat([targets[:1], targets])[None]  # the library drops the first label and the last state
        nll = theirs(torch.cat([x, x[:, :1]], dim=1), shifted)
        nll.mean().backward()
        return nll.detach()

    difference = abs(float(ours().mean() - hugging_face().mean()))
    seconds = take_turns({"txl": ours, "hugging face": hugging_face}, rounds=rounds)
    notes = f"mean losses differ by {difference:.1e}"
    return Row(
        f"T3: adaptive loss, V {VOCAB:,}, div_val {div_val}", "call", seconds, "txl", {"hugging face": 2.0}, notes
    )


if __name__ == "__main__":
    main()
