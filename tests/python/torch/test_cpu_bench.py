"""bench/torch_allreduce.py and bench/torch_steps.py: CPU tensors with Isthmus against gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.records import Report

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.mark.parametrize(
    ("program", "collectives", "providers"),
    [
        (
            ["torch_allreduce.py", "--samples", "8", "--sizes", "64,1K"],
            {"allreduce"},
            {"gloo", "isthmus", "isthmus_direct"},
        ),
        (
            ["torch_steps.py", "--steps", "2", "--width", "32", "--layers", "1"],
            {"ddp_step", "fsdp2_step"},
            {"gloo", "isthmus"},
        ),
    ],
    ids=["allreduce", "steps"],
)
def test_records_every_rank_count(
    tmp_path: Path, program: list[str], collectives: set[str], providers: set[str]
) -> None:
    out = tmp_path / "records.json"
    command = [sys.executable, str(BENCH / program[0]), *program[1:], "--ranks", "2,3", "--rounds", "1"]
    completed = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    records = Report.load(out).records
    assert {record.collective for record in records} == collectives
    assert {record.provider for record in records} == providers
    assert {record.ranks for record in records} == {2, 3}
    assert all(record.wrong == 0 for record in records)
