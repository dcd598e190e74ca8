"""scripts/bench (used by `make bench`): writes a report within the time limit and does not overwrite files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus import launch, layout
from isthmus.records import Report

ROOT = layout.checkout()
pytestmark = pytest.mark.skipif(
    ROOT is None or not Path(launch.launcher("mpich").executable).is_file(), reason="needs a checkout and MPICH"
)


def bench(*arguments: str) -> tuple[int, str]:
    completed = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench"), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return completed.returncode, completed.stdout + completed.stderr


def test_bench_writes_report_without_overwriting(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    code, output = bench("--only", "barrier", "--ranks", "2", "--out", str(folder))
    assert code == 0, output
    assert "1 measurements" in output and re.search(r"\[1/1, \d+ s\] barrier \.\.\.", output), output
    assert {record.provider for record in Report.load(folder / "barrier.json").records} == {"isthmus", "mpich"}
    assert "barrier" in (folder / "report.html").read_text()
    modification_times = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    code, output = bench("--only", "barrier", "--out", str(folder))
    assert code == 1 and "nothing is overwritten" in output
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == modification_times


def test_expired_time_limit_reports_missing_records(tmp_path: Path) -> None:
    code, output = bench("--only", "barrier", "--minutes", "0.1", "--out", str(tmp_path / "new"))
    assert code == 1 and "barrier ... out of time" in output and "no records" in output, output


def test_invalid_arguments_are_rejected() -> None:
    for arguments, message in ((["--only", "nothing"], "allowed: allreduce"), (["--ranks", "1"], "at least 2")):
        code, output = bench(*arguments)
        assert code == 2 and message in output, output
