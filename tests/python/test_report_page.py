"""`isthmus report`: the page contains all records and is self-contained."""

from __future__ import annotations

import io
import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from isthmus._console import SafeConsole
from isthmus.analysis import regrets, speedups
from isthmus.cli import console, main
from isthmus.records import Record, report_from

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
COMMAND = "isthmus bench allreduce & <its> options"
MACHINE = {"name": "cpu2", "cpu": "A <CPU>", "cores": 2}


def record(provider: str, size: int, us: float, **fields: Any) -> Record:
    figures = {"min": us, "median": us, "max": us}
    values = {"collective": "allreduce", "dtype": "float32", "op": "sum", "ranks": 2, "wrong": 0} | fields
    bandwidth = size / us / 1e3
    return Record(
        bytes=size, provider=provider, time_us=figures, algbw_gbs=bandwidth, busbw_gbs=bandwidth, **values
    )


def write_report(file: Path, records: list[Record]) -> None:
    report_from(records, command=COMMAND, commit="c0ffee", machine=MACHINE, versions={"mpich": "5"}).save(file)


class PageParser(HTMLParser):
    """Collects table cells and references of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.references: list[str] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._in_cell = tag == "td"
        names = ("href", "src", "xlink:href", "data", "action")
        self.references += [value or "" for name, value in attributes if name in names]
        assert tag != "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells.append(data.strip())


def test_page_contains_records_and_is_self_contained(tmp_path: Path) -> None:
    times = {size: (random.uniform(1, 9), random.uniform(1, 9)) for size in (8, 1024, 4096, 1 << 20)}
    records = []
    for size, (own, peer) in times.items():
        records.append(record("isthmus", size, own, backend="shm:packet", reason='rule "use=shm"'))
        records.append(record("mpich", size, peer))
    write_report(tmp_path / "some.json", records)
    page = tmp_path / "out" / "report.html"
    assert main(["report", str(tmp_path), "-o", str(page)]) == 0
    text = page.read_text()
    parsed = PageParser(text)
    for own, peer in times.values():
        for value in (f"{own:.2f}", f"{peer:.2f}", f"{peer / own:.2f}"):
            assert value in parsed.cells
    assert all(reference.startswith("#") for reference in parsed.references), parsed.references
    assert "url(http" not in text and "@import" not in text
    assert text.count("<svg") == 1  # on hosts, no plot of the bandwidth
    assert "isthmus bench allreduce &amp; &lt;its&gt; options" in text and "A &lt;CPU&gt;" in text
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names))  # duplicate ids would show parts of the wrong plot


def test_page_of_all_results_is_below_1_mb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = SafeConsole(file=io.StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "notes", terminal)
    assert main(["report", str(RESULTS), "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert len(text.encode()) < 1_000_000
    assert text.count("<svg") > 200
    files = len(list(RESULTS.glob("*.json")))
    assert f"{files}/{files}" in terminal.file.getvalue()


def test_speedup_and_regret_ratios() -> None:
    rule = 'rule "use=shm"'
    records = [
        record("isthmus", 8, 2.0, reason=rule, backend="shm"),
        record("isthmus", 8, 1.0, backend="shm:packet"),
        record("mpich", 8, 4.0),
        record("openmpi", 8, 3.0),
        record("isthmus", 64, 2.0, reason=rule, mode="sycl_usm"),
        record("mpich", 64, 1.0),
    ]
    assert [ratio.value for ratio in speedups(records)] == [1.5, 3.0, 0.5]
    (regret,) = regrets(records)  # at 64 bytes there is no other path on USM
    assert regret.value == 2.0 and regret.record is records[0]


def test_unreadable_files_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(tmp_path / "good.json", [record("isthmus", 0, 1.0, collective="barrier")])
    full_text = (tmp_path / "good.json").read_text()
    (tmp_path / "cut.json").write_text(full_text[: len(full_text) // 2])
    (tmp_path / "later.json").write_text(json.dumps(json.loads(full_text) | {"schema": 2}))
    (tmp_path / "none.json").write_text(json.dumps(json.loads(full_text) | {"records": []}))
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "-o", str(page)]) == 0
    stderr = capsys.readouterr().err
    for name in ("cut.json", "later.json", "none.json"):
        assert name in stderr and name in page.read_text()


def test_report_overwrites_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(tmp_path / "good.json", [record("isthmus", 8, 1.0)])
    page = tmp_path / "report.html"
    page.write_text("mine")
    assert main(["report", str(tmp_path), "-o", str(page)]) == 2
    assert "--force" in capsys.readouterr().err and page.read_text() == "mine"
    assert main(["report", str(tmp_path), "-o", str(page), "--force"]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_missing_records_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source, message in ((tmp_path, "no file ends in .json"), (tmp_path / "nowhere", "does not exist")):
        assert main(["report", str(source), "-o", str(tmp_path / "report.html")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_application_chart_has_bar_per_transport(tmp_path: Path) -> None:
    shares = {"mpi": 0.75, "isthmus": 0.25}
    records = [
        record(provider, 4096, 100, collective="halo", op=None, communication_share=share)
        for provider, share in shares.items()
    ]
    write_report(tmp_path / "halo.json", records)
    assert main(["report", str(tmp_path / "halo.json"), "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 1 and PageParser(text).cells
    assert "Time of one step" in text and "communication" in text


def test_problems_of_equal_bytes_stay_separate(tmp_path: Path) -> None:
    def transpose_record(provider: str, us: float, decomposition: str) -> Record:
        extra = {"decomposition": decomposition, "command": f"run {decomposition}", "communication_share": 0.5}
        base = record(provider, 4096, us, collective="transpose", op=None, **extra)
        return Record(**base.model_dump(), size=[128, 128, 128])

    records = [
        transpose_record("mpi", 100, "1-D"),
        transpose_record("isthmus", 50, "1-D"),
        transpose_record("mpi", 400, "2-D"),
    ]
    write_report(tmp_path / "transpose.json", [*records, transpose_record("isthmus", 200, "2-D")])
    assert main(["report", str(tmp_path / "transpose.json"), "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "median 2.00 of 2 points, worst 2.00" in text
    assert text.count("<svg") == 2
    assert "128 x 128 x 128, 2-D" in text and "<code>run 1-D</code>" in text
