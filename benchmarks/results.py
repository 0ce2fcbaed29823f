"""Collects the JSON lines of the benchmarks and writes them as tables, each under the command that made it.

results.py add FILE COMMAND < output: appends the last line of an output, with its command, to FILE.
results.py write FILE OUT.md: the page.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

INTRODUCTION = """# Results

What `benchmarks/run_all` measures, alone on the machine: contenders take turns within one process, times are medians of
the rounds, ratios are taken within each round (median, least – most). *Ours* is always txl. Hugging Face
is transformers 4.35.2's Transformer-XL with the very same weights, its outputs compared first; x-transformers is its
decoder with rotary positions and memory at the same sizes, which is not the same algebra. All rows but those that say
so: 4 layers, d 512, 8 heads of 64, inner 2,048, vocabulary 256. An aim is what the ratio was meant to reach.

The aims of training and evaluation in float32 were set on a processor with AVX-512, whose library multiplies at half of
what another kernel reaches there; this one has AVX2 alone, both kernels are equally fast (`txl bench` says which is
used), and the profiles at the end say how near to the speed of its products a step runs. bf16 has no hardware here:
those rows only show that it works. Nothing was measured on a GPU, because none was to be had: `benchmarks/gpu.sh` is
ready for one.
"""


def main() -> None:
    """One of the two."""
    what, file, third = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if what == "add":
        line = json.loads(sys.stdin.read().strip().splitlines()[-1])
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"command": third, **line}) + "\n")
        return
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    here = found[0]["machine"]
    machine = (
        f"\nMachine: {here['cpu']}, {here['cores']} cores, {here['capability']}; Python {here['python']}, "
        f"torch {here['torch']}, transformers {here['transformers']}, x-transformers {here['x-transformers']}.\n"
    )
    parts = [INTRODUCTION, machine, *(section(one) for one in found)]
    Path(third).write_text("\n".join(parts), encoding="utf-8")


def section(one: dict[str, Any]) -> str:
    """A benchmark's command and its tables."""
    lines = ["", f"```\n{one['command']}\n```", ""]
    if "rows" in one and isinstance(one["rows"], list):
        for row in one["rows"]:
            lines += table(row)
    if "quality" in one:
        lines += int8(one)
    if "saved_bytes_a_layer" in one:
        lines += saved(one)
    if "parts" in one:
        lines += parts_of(one)
    return "\n".join(lines)


def table(row: dict[str, Any]) -> list[str]:
    """One workload."""
    unit = row["unit"]
    lines = [f"**{row['workload']}**" + (f" ({row['notes']})" if row["notes"] else ""), ""]
    lines += [f"| | ms a {unit} | ours is faster | aim | |", "| --- | ---: | --- | --- | --- |"]
    medians = {name: statistics.median(seconds) for name, seconds in row["seconds"].items()}
    for name in sorted(medians, key=lambda name: medians[name]):
        time = f"{1000 * medians[name]:,.3f}"
        if name == row["ours"]:
            lines.append(f"| **{name}** | {time} | | | |")
            continue
        middle, least, most = row["ratios"][name]
        aim = row["aims"].get(name)
        verdict = "" if aim is None else "reached" if middle >= aim else "not reached"
        wanted = "" if aim is None else f"{aim:g}×"
        lines.append(f"| {name} | {time} | {middle:,.2f}× ({least:,.2f} – {most:,.2f}) | {wanted} | {verdict} |")
    return [*lines, ""]


def int8(one: dict[str, Any]) -> list[str]:
    """What 8-bit weights weigh and cost."""
    sizes, quality = one["layer_bytes"], one["quality"]
    lines = [f"Bytes of the layers' weights: {sizes['full']:,} full, {sizes['int8']:,} in 8 bits."]
    if quality is not None:
        delta = quality["int8"] - quality["full"]
        lines.append(
            f"Bits per byte of `{quality['run']}` on {quality['tokens']:,} tokens of its test text: "
            f"{quality['full']:.5f} full, {quality['int8']:.5f} in 8 bits ({delta:+.5f})."
        )
    return [*lines, ""]


def saved(one: dict[str, Any]) -> list[str]:
    """Bytes that a layer saves for its backward."""
    sizes = one["saved_bytes_a_layer"]
    lines = [
        "**M1: bytes saved for the backward of a layer, B 2, T = M = 512** (aim: at most 0.6 of Hugging Face's)",
        "",
    ]
    lines += ["| | MiB | of Hugging Face's |", "| --- | ---: | ---: |"]
    for name, size in sorted(sizes.items(), key=lambda pair: pair[1]):
        lines.append(f"| {name} | {size / 2**20:.1f} | {size / sizes['hugging face']:.2f} |")
    states = one["streaming_state_bytes"].items()
    text = ", ".join(f"{size / 2**20:.1f} MiB at window {window}" for window, size in states)
    return [*lines, "", f"Streaming state of one row, constant: {text}.", ""]


def parts_of(one: dict[str, Any]) -> list[str]:
    """Where the time of a step goes."""
    name, total = one["benchmark"].removeprefix("profile "), sum(one["parts"].values())
    bound = one["flops"] / one["product_flops_a_second"]
    lines = [
        f"**{name}: {1000 * one['seconds']:.1f} ms a step, {one['bound_share']:.0%} of the product bound** "
        f"({one['flops'] / 1e9:.2f} GFLOP at {one['product_flops_a_second'] / 1e9:.0f} GFLOP/s would take "
        f"{1000 * bound:.1f} ms)",
        "",
        "| part | ms | share |",
        "| --- | ---: | ---: |",
    ]
    for part, took in sorted(one["parts"].items(), key=lambda pair: -pair[1]):
        lines.append(f"| {part} | {1000 * took:.2f} | {took / total:.1%} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
