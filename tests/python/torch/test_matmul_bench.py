"""bench/gpu/torch_matmul.py and torch_sequence_parallel.py on the CPU: the operators against separate calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parents[3] / "bench/gpu"


def run(program: str, out: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(PROGRAMS / program), "--device", "cpu", "--ranks", "2", "--samples", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    completed = subprocess.run(
        [*command, *arguments, "--out", str(out)],
        capture_output=True, text=True, timeout=170, check=False, env=environment,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    records = json.loads(out.read_text())["records"]
    assert {each["provider"] for each in records} == {"isthmus", "isthmus_separate", "gloo_separate"}
    assert all(each["wrong"] == 0 and each["time_us"]["min"] > 0 for each in records), records
    return records


def test_products_are_checked_and_compared(tmp_path: Path) -> None:
    records = run("torch_matmul.py", tmp_path / "matmul.json", "--shapes", "48x32", "--rows", "1,20")
    assert len(records) == 6


def test_sequence_layers_are_checked_and_compared(tmp_path: Path) -> None:
    shapes = "allgather_matmul:48x32,matmul_reduce_scatter:48x32,mlp:32x48"
    arguments = ("--shapes", shapes, "--rows", "32")
    assert len(run("torch_sequence_parallel.py", tmp_path / "layers.json", *arguments)) == 9
