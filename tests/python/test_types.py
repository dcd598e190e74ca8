"""Types of the package, as a user's type checker sees them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import isthmus
from isthmus import _isthmus, fused, table

PROGRAMS = Path(__file__).with_name("types")
_ERROR = re.compile(r"(?P<file>\w+)\.py:(?P<line>\d+): error: (?P<text>.*?)(?:  \[(?P<code>[\w-]+)\])?")


def names_of(enumeration: type) -> tuple[str, ...]:
    return tuple(member.name for member in enumeration)


def test_literal_names_are_those_of_the_enumerations() -> None:
    assert get_args(table.CollectiveName) == names_of(table.Collective)
    assert get_args(table.DatatypeName) == names_of(table.Datatype)
    assert get_args(table.PlatformName) == names_of(table.Platform)
    assert get_args(table.ReductionOpName) == names_of(table.ReductionOp)
    assert get_args(fused.KindName) == names_of(_isthmus.FusedKind)
    assert get_args(fused.ModeName) == names_of(_isthmus.FusedMode)
    assert get_args(fused.ViewName) == names_of(_isthmus.FusedView)


@pytest.mark.timeout(400)
def test_mypy_accepts_good_and_rejects_bad_program(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (run scripts/setup)")
    package_folder = str(Path(isthmus.__file__).parent.parent)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--follow-imports=silent"]
    completed = subprocess.run(
        [*command, f"--cache-dir={tmp_path}", "--no-warn-unused-configs", "good.py", "bad.py"],
        cwd=PROGRAMS,
        env=os.environ | {"MYPYPATH": package_folder},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1, completed.stdout + completed.stderr
    matches = [_ERROR.fullmatch(line) for line in completed.stdout.splitlines() if ": error: " in line]
    errors = sorted({(match["file"], int(match["line"]), match["code"]) for match in matches if match})
    lines = (PROGRAMS / "bad.py").read_text().splitlines()
    expected = [
        ("bad", number, line.rpartition("# ")[2]) for number, line in enumerate(lines, 1) if "  # " in line
    ]
    assert errors == expected, completed.stdout
