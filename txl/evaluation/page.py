"""The pages of a report: measurements and finished pictures -> Markdown and one self-contained HTML text.

Question, answer, table, pictures, samples, settings, the command, and all of it as JSON. Knows nothing of how pictures
are drawn or files written.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from txl.evaluation import summary
from txl.evaluation.answer import Answer, answer
from txl.evaluation.caveats import caveats
from txl.evaluation.measure import Measurement
from txl.evaluation.recl import Recl
from txl.evaluation.sections import sections

CAPTIONS = {
    "context.png": (
        "Loss against context",
        "All points are about one sample of tokens. A cached window lets each layer see that many earlier positions, "
        "so a deep model hears of more; a slid window, and a fresh pass, is exactly that many tokens. Bands are 95 % "
        "intervals of the comparison: how hard the text itself is, the same for all points, is left out of them. "
        "Dashed, without a band: a slid window longer than in training, whose last positions the model never met. "
        "Of more than five runs each is drawn by the reading it is judged by.",
    ),
    "copy.png": (
        "What memory is used for",
        "Loss of sampled targets by how far back a run of tokens that they complete, about 8 bytes of text, came last; "
        "each run at its own context. Where the last place lies beyond what a model can see, it cannot copy. "
        "Bars are 95 % intervals of the comparison.",
    ),
    "position.png": (
        "Loss by place in a segment",
        "All targets, by their place in blocks of the training segment's length. A model that reads disjoint blocks "
        "starts each with nothing; memory makes the line level.",
    ),
    "speed.png": (
        "Speed against context",
        "Scoring known text on the machine named below: median of several runs after one that is not counted; "
        "bars reach from the slowest run to the fastest. A slid window feeds all its tokens again for each one it "
        "scores; blocks score every token they are fed, with half the context on average; a decoder with a cache has "
        "rotary positions, for absolute ones cannot keep keys when their window moves.",
    ),
    "learning.png": (
        "Learning",
        "Validation loss while training: models with absolute positions in blocks, others through their cache. The "
        "training loss behind it is measured with dropout on.",
    ),
}
"""Title and caption of each picture."""

DIFFERING = "≠ stands before what differs between the runs."
"""Said above the settings of several runs."""

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d0d7de; --box: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --ink: #e6e6e6; --soft: #a3abb5; --line: #3a414b; --box: #1c2128; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.5rem; }
.answer { border-left: 4px solid #0072B2; padding: 0.2rem 0 0.2rem 1rem; margin: 1rem 0 1.5rem; }
.answer p { font-size: 1.15rem; margin: 0; }
.answer ul { margin: 0.4rem 0; padding-left: 1.2rem; }
.soft, figcaption { color: var(--soft); font-size: 0.9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 0.35rem 0.5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
td.text + td.text { white-space: normal; min-width: 10rem; }
figure { margin: 0; }
img { width: 100%; height: auto; display: block; }
pre { background: var(--box); padding: 0.8rem; border-radius: 6px; overflow-x: auto; margin: 0.4rem 0; }
pre { font-size: 0.82rem; }
pre.sample { white-space: pre-wrap; overflow-wrap: anywhere; }
.samples { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
summary { cursor: pointer; font-weight: 600; margin: 1rem 0 0.5rem; }
"""


def markdown(
    measurements: Sequence[Measurement], pictures: Sequence[str], *, command: str, lengths: Sequence[Recl] = ()
) -> str:
    """The report as Markdown, its pictures beside it."""
    parts = [
        f"# {title(measurements)}",
        f"*{question(measurements)}*",
        str(answer(measurements)),
        _md_table(*summary.table(measurements)),
    ]
    for name in pictures:
        heading, caption = CAPTIONS[name]
        parts += [f"## {heading}", f"![{heading}]({name})", caption]
    for section in sections(measurements, lengths):
        parts += [f"## {section.title}", _md_table(section.header, section.rows), section.caption]
    samples = [
        (label, m.sample) for label, m in zip(summary.labels(measurements), measurements, strict=True) if m.sample
    ]
    if samples:
        parts.append("## Samples")
        parts += [f"**{label}**\n\n{_indented(sample)}" for label, sample in samples]
    parts += ["## How to read this", "\n".join(f"* {note}" for note in caveats(measurements))]
    parts += ["## Every point", _md_table(*summary.table(measurements, every_point=True))]
    parts += ["## Settings", *([DIFFERING] if len(measurements) > 1 else []), _md_table(*settings(measurements))]
    parts += ["## Make it again", _indented(command)]
    return "\n\n".join(parts) + "\n"


def html(
    measurements: Sequence[Measurement],
    pictures: Mapping[str, tuple[bytes, bytes]],
    *,
    command: str,
    lengths: Sequence[Recl] = (),
) -> str:
    """The report as one HTML text: pictures (PNG, for a light and a dark page) embedded, nothing fetched, no script."""
    name = escape(title(measurements))
    asked = escape(question(measurements))
    parts = [
        f"<h1>{name}</h1>",
        f'<p class="soft">{asked}</p>',
        _html_answer(answer(measurements)),
    ]
    parts.append(_html_table(*summary.table(measurements), text_columns=2))
    for picture, (light, dark) in pictures.items():
        heading, caption = (escape(text) for text in CAPTIONS[picture])
        parts.append(
            f"<h2>{heading}</h2><figure><picture>"
            f'<source media="(prefers-color-scheme: dark)" srcset="{_data(dark)}">'
            f'<img src="{_data(light)}" alt="{heading}"></picture><figcaption>{caption}</figcaption></figure>'
        )
    for section in sections(measurements, lengths):
        table = _html_table(section.header, section.rows, text_columns=2 if section.header[1] == "reads" else 1)
        parts.append(f'<h2>{escape(section.title)}</h2>{table}<p class="soft">{escape(section.caption)}</p>')
    samples = [
        (label, m.sample) for label, m in zip(summary.labels(measurements), measurements, strict=True) if m.sample
    ]
    if samples:
        boxes = (f"<div><b>{escape(label)}</b><pre class=sample>{escape(text)}</pre></div>" for label, text in samples)
        parts.append(f'<h2>Samples</h2><div class="samples">{"".join(boxes)}</div>')
    notes = "".join(f"<li>{escape(note)}</li>" for note in caveats(measurements))
    parts.append(f"<h2>How to read this</h2><ul>{notes}</ul>")
    differing = f'<p class="soft">{DIFFERING}</p>' if len(measurements) > 1 else ""
    every = _html_table(*summary.table(measurements, every_point=True), text_columns=2)
    parts.append(f"<details><summary>Every point</summary>{every}</details>")
    parts.append(
        f"<details open><summary>Settings</summary>{differing}{_html_table(*settings(measurements), text_columns=1)}"
        "</details>"
    )
    parts.append(f"<h2>Make it again</h2><pre>{escape(command)}</pre>")
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def title(measurements: Sequence[Measurement]) -> str:
    """Which runs on which text."""
    names = summary.labels(measurements)
    several = " against ".join(names) if len(names) < 4 else f"{len(names)} runs compared"
    return f"{several}: {measurements[0].split} text"


def question(measurements: Sequence[Measurement]) -> str:
    """What the report answers, in one sentence."""
    tokens = [m.trained_tokens for m in measurements]
    least, most = min(tokens), max(tokens)
    read = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    after = f"after training on {read} tokens" if least else "as they were trained"
    text = f"{measurements[0].split} text {after}"
    if len(measurements) == 1:
        return f"How well does this model predict {text}, and how much context does it use?"
    by_bits = summary.metric_of(measurements).name == "bits per byte"
    which = "needs fewer bits per byte on" if by_bits else "has the lower perplexity on"
    which += " the same" if summary.same_text(measurements) else " its own"
    return f"Which of these models {which} {text}, how much context does each use, and what does a token cost?"


def settings(measurements: Sequence[Measurement]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What the runs are and what they were computed with: facts, then config values that differ (≠), then the rest."""
    rows: list[tuple[str, ...]] = []

    def row(what: str, values: Sequence[Any]) -> None:
        shown = tuple(_shown(value) for value in values)
        rows.append((what if len(set(shown)) == 1 else f"≠ {what}", *shown))

    row("parameters", [m.parameters for m in measurements])
    row("optimizer steps", [m.step for m in measurements])
    row("training tokens", [m.trained_tokens or None for m in measurements])
    row("seconds a training step (10 – 90 %)", [_step(m) for m in measurements])
    row(
        "scored text",
        [f"{m.text_tokens:,} tokens, {m.headline.text_bytes:,.0f} bytes, {m.unknowns:,} unknown" for m in measurements],
    )
    row("corpus hash", [m.corpus_hash[:16] for m in measurements])
    row("tokenizer", [f"{m.vocab_size:,} ids, hash {m.tokenizer_hash[:16]}" for m in measurements])
    for what, key in (
        ("streams scored at once", "streams"),
        ("tokens of each at once", "segment_tokens"),
        ("resets", "resets"),
    ):
        row(what, [getattr(m.headline.settings, key) for m in measurements])
    row("computed in", [f"{m.headline.settings.dtype} on {m.headline.settings.device}" for m in measurements])
    for key in ("python", "platform", "cpu", "threads"):
        row(key, [m.environment.get(key) for m in measurements])
    row("torch", [m.environment.get("packages", {}).get("torch") for m in measurements])
    facts = len(rows)
    for section in dict.fromkeys(section for m in measurements for section in m.config):
        for key in dict.fromkeys(key for m in measurements for key in m.config.get(section, {})):
            row(f"{section}.{key}", [_setting(m.config.get(section, {}).get(key)) for m in measurements])
    rows[facts:] = sorted(rows[facts:], key=lambda cells: not cells[0].startswith("≠"))
    return ("", *summary.labels(measurements)), rows


def data(measurements: Sequence[Measurement], *, command: str, lengths: Sequence[Recl] = ()) -> str:
    """The report as JSON: sentences, every point as shown, and measurements that `Measurement.from_json` reads."""
    header, rows = summary.table(measurements, every_point=True)
    record = {
        "command": command,
        "answer": str(answer(measurements)),
        "caveats": caveats(measurements),
        "table": [dict(zip(header, row, strict=True)) for row in rows],
        "effective_context_lengths": [asdict(found) for found in lengths],
        "measurements": [m.to_record() for m in measurements],
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _step(m: Measurement) -> str:
    """Seconds of a training step."""
    if m.step_seconds is None:
        return "not logged"
    middle, low, high = m.step_seconds
    return f"{middle:.3g} ({low:.3g} – {high:.3g})"


def _setting(value: Any) -> Any:
    """A config value as a config has it, digits together; none for an empty list."""
    return str(value) if type(value) is int else value if value != [] else None


def _shown(value: Any) -> str:
    """A fact as a reader expects it."""
    if isinstance(value, bool) or value is None:
        return {None: "–", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _md_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _html_answer(found: Answer) -> str:
    """The answer, of many runs with a list of them."""
    if not found.runs:
        return f'<div class="answer"><p>{escape(str(found))}</p></div>'
    lines = "".join(f"<li>{escape(line)}</li>" for line in found.runs)
    more = f"<p>{escape(found.more)}</p>" if found.more else ""
    return f'<div class="answer"><p>{escape(found.found)}</p><ul>{lines}</ul>{more}</div>'


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int) -> str:
    """An HTML table that scrolls by itself on a narrow screen; the first columns are text."""

    def line(tag: str, cells: Sequence[str]) -> str:
        marked = (
            f"<{tag}{' class=text' if i < text_columns else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="wide"><table><thead>{line("th", header)}</thead><tbody>{body}</tbody></table></div>'


def _indented(text: str) -> str:
    """A Markdown block that shows text as it is, whatever is in it."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _data(picture: bytes) -> str:
    """A picture as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
