"""The report folder: every file there, whole, self-contained, and true to the measurements."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.unit.evaluation.fakes import measurement, point, speed
from tests.unit.evaluation.test_summary import HARD, vanilla, xl
from txl.evaluation import page, report, summary
from txl.evaluation.answer import answer
from txl.evaluation.caveats import caveats
from txl.evaluation.learning import Learning
from txl.evaluation.measure import Measurement
from txl.evaluation.recl import Gain, Recl
from txl.evaluation.report import PICTURES, draw, write_report
from txl.evaluation.report_axes import context_axis, note_above, spread
from txl.evaluation.report_pictures import DARK, LIGHT
from txl.evaluation.sections import sections

PNG = b"\x89PNG\r\n\x1a\n"
COMMAND = "txl compare configs/quickstart.yaml run.dir='<here>'"


LENGTHS = [
    Recl("xl", 0.1, 192, False, 64, 0.01, 16, (Gain(64, 0.2), Gain(128, 0.1))),
    Recl("xl", 1.0, 128, True, 64, 0.01, 160, (Gain(64, 0.1), Gain(128, 0.001))),
    Recl("vanilla", 0.1, 64, True, 64, 0.01, 16, (Gain(64, 0.0),)),
    Recl("vanilla", 1.0, 64, True, 64, 0.01, 160, (Gain(64, 0.0),)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs."""
    folder = tmp_path_factory.mktemp("runs") / "report"
    return write_report(folder, [xl(), vanilla()], command=COMMAND, lengths=LENGTHS).parent


def test_all_files_are_there_and_no_drafts(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted([*PICTURES, "report.html", "report.json", "report.md"])
    for name in PICTURES:
        assert (folder / name).read_bytes().startswith(PNG)


def test_json_holds_the_measurements_the_answer_and_the_table(folder: Path) -> None:
    record = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [Measurement.from_json(json.dumps(m)) for m in record["measurements"]] == [xl(), vanilla()]
    assert record["answer"] == str(answer([xl(), vanilla()]))
    assert record["command"] == COMMAND
    assert [found["length"] for found in record["effective_context_lengths"]] == [192, 128, 64, 64]
    assert len(record["table"]) == 3 + 4
    assert record["table"][0]["run"] == "xl"


class Page(HTMLParser):
    """What is in a page: tags opened and closed, their attributes, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_opens_by_itself(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    addresses = [value or "" for name, value in page.attributes if name in ("src", "srcset", "href")]
    assert len(addresses) == 2 * len(PICTURES)
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    assert not re.search(r"https?:|<script|@import|url\(", text)
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_pages_hold_the_answer_the_numbers_the_samples_and_the_command(folder: Path, name: str) -> None:
    raw = (folder / name).read_text(encoding="utf-8")
    text = "".join(Page(raw).words) if name == "report.html" else raw
    both = [xl(), vanilla()]
    assert str(answer(both)) in text
    assert COMMAND in text
    assert xl().sample in text
    for note in caveats(both):
        assert note in text
    for row in summary.table(both, every_point=True)[1]:
        assert all(cell in text for cell in row)
    for fact in (
        "≥ 192",
        "r = 0.1",
        "363 at 800",
        "copied from (8 tokens come again): 1 – 64",
        "xl 20.0 % (20.0 to 20.0)",
    ):
        assert fact in text
    assert text.count(page.DIFFERING) == 1
    for fact in ("3.11.4", "some cpu", "2.13.0", "ab" * 8, "0.25 (0.2 – 0.4)", "≠ model.arch", "10,001 tokens"):
        assert fact in text


def test_the_best_run_of_a_class_keeps_its_name() -> None:
    tables = {section.title: section for section in sections([replace(xl(), name="xl-no-memory"), vanilla()], [])}
    gains = [row[-1] for row in tables["Where memory pays"].rows]
    assert "xl-no-memory 20.0 % (20.0 to 20.0)" in gains


def test_speeds_are_compared_with_the_best_run_that_has_a_cache() -> None:
    worse = [point("window", 64, "all", 20 * HARD, each=100), point("window", 64, "sample", 2 * HARD)]
    faster = measurement("worse", worse, [speed("window", 64, 30_000.0)])
    for runs in ([xl(), vanilla(), faster], [faster, vanilla(), xl()]):
        (table,) = (section for section in sections(runs, []) if section.title.startswith("Speed"))
        (slid,) = (row for row in table.rows if row[1] == summary.SPEED_KINDS["slide"])
        assert slid[-1] == "100"  # 10,000 tokens a second of xl, 100 of the window
        assert "than xl from a cache" in table.caption


def test_markdown_tables_have_equal_columns(folder: Path) -> None:
    lines = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    tables = [list(rows) for is_row, rows in groupby(lines, lambda line: line.startswith("|")) if is_row]
    assert [len(table) for table in tables[:4]] == [2 + 5, 2 + 2, 2 + 2, 2 + 5]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    for name in PICTURES:
        assert f"]({name})" in "\n".join(lines)


def test_a_report_without_speeds_or_log_has_no_such_pictures_and_removes_old_ones(tmp_path: Path) -> None:
    for name in PICTURES:
        (tmp_path / name).write_bytes(b"old")
    points = [point("window", 64, "all", HARD), point("window", 64, "sample", HARD)]
    page = write_report(tmp_path, [measurement("xl", points, learning=(), sample="", step_seconds=None)], command="c")
    assert page == tmp_path / "report.html"
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["context.png"]
    text = page.read_text(encoding="utf-8")
    assert "Speed against context" not in text
    assert "Samples" not in text
    assert "not logged" in text


def test_many_runs_are_ranked_in_pages_and_pictures(tmp_path: Path) -> None:
    runs = [measurement(f"run-{number}", vanilla(1 + number / 100).points) for number in range(9)]
    page = write_report(tmp_path, runs, command=COMMAND).read_text(encoding="utf-8")
    found = answer(runs)
    assert "<h1>9 runs compared: test text</h1>" in page
    assert [page.count(line) for line in found.runs] == [1] * 8
    assert [page.index(line) for line in found.runs] == sorted(page.index(line) for line in found.runs)
    assert str(found) in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert len(set(LIGHT.runs)) == len(set(DARK.runs)) == 9  # a colour each


def test_a_failure_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.md").write_text("old")

    def fail(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(report.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report._write(tmp_path / "report.md", b"new")
    assert (tmp_path / "report.md").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn_for_any_numbers(name: str) -> None:
    broken = [*HARD[:-1], math.nan]
    several = [
        measurement("nan", [point("window", 8, "all", broken), point("window", 8, "sample", broken)]),
        measurement(
            "one", [point("window", 8, "all", [9.0]), point("window", 8, "sample", [9.0])], incomparable="lossy"
        ),
        measurement("zero", [point("window", 8, "all", 0 * HARD), point("window", 8, "sample", 0 * HARD)]),
    ]
    for m in several:
        draw(name, [m], LIGHT)
    draw(name, [*several, xl(), vanilla(text_hash="other")], DARK)
    state = replace(point("state", 1, "sample", HARD), context=None)
    recurrent = measurement("lstm", [replace(state, targets="all"), state], learning=())
    assert draw(name, [xl(), recurrent], LIGHT) is not None
    assert draw(name, [recurrent], LIGHT) is None


def test_light_and_dark_differ_and_the_same_numbers_give_the_same_picture() -> None:
    both = [xl(), vanilla()]
    first, second, dark = (draw("context.png", both, theme) for theme in (LIGHT, LIGHT, DARK))
    assert first == second
    assert first != dark


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([0.5, 0.5, 0.9], [0.45, 0.55, 0.9]),
        ([0.9, 0.1], [0.9, 0.1]),
        ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6]),
        ([0.3, 0.32, 0.45], [0.25666667, 0.35666667, 0.45666667]),
        ([0.7], [0.7]),
        ([], []),
    ],
)
def test_names_are_moved_apart(heights: list[float], expected: list[float]) -> None:
    assert spread(heights, 0.1) == pytest.approx(expected)


def test_names_keep_their_order_and_distance() -> None:
    heights = list(np.random.default_rng(1).random(12))
    placed = spread(heights, 0.05)
    assert np.argsort(placed).tolist() == np.argsort(heights).tolist()
    assert np.diff(sorted(placed)).min() >= 0.05 - 1e-9


def test_ticks_stand_at_contexts_measured_and_never_so_near_that_their_numbers_meet() -> None:
    axes = Figure().add_subplot()
    context_axis(axes, [16, 64, 32, 128, 64, 192, 256, 320, 384, 448, 512])
    assert axes.get_xticks().tolist() == [16, 32, 64, 128, 192, 256, 384, 512]
    context_axis(axes, [16, 1_000_000])
    assert axes.get_xticks().tolist() == [16, 1_000_000]
    context_axis(axes, [64])
    assert axes.get_xticks().tolist() == [64]


def test_values_above_the_frame_at_one_place_are_written_below_each_other() -> None:
    axes = Figure().add_subplot()
    for x in (128, 128, 256, 128):
        note_above(axes, x, "↑ 4.1", "black")
    heights = [note.xyann[1] for note in axes.texts]
    assert len({(note.xy, note.xyann) for note in axes.texts}) == 4
    assert heights[2] == heights[0] > heights[1] > heights[3]


def test_the_question_says_how_much_was_read_by_whom_read_least_and_most() -> None:
    alike = [replace(m, learning=(curve(1_638_400),)) for m in (xl(), vanilla())]
    assert "test text after training on 1,638,400 tokens, " in page.question(alike)
    longer = [*alike, replace(vanilla(), learning=(curve(2_428_928),))]
    assert "after training on 1,638,400 to 2,428,928 tokens, " in page.question(longer)
    unknown = [*longer, replace(vanilla(), learning=())]
    assert "test text as they were trained, " in page.question(unknown)


def curve(tokens: int) -> Learning:
    return replace(xl().learning[0], tokens=tuple(tokens for _ in xl().learning[0].tokens))


def test_no_measurement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found no measurements"):
        write_report(tmp_path / "report", [], command="c")
    assert not (tmp_path / "report").exists()
