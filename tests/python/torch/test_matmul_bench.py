"""bench/gpu/torch_matmul.py on the CPU: the operator against separate calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[3] / "bench/gpu/torch_matmul.py"


def test_products_are_checked_and_compared(tmp_path: Path) -> None:
    out = tmp_path / "matmul.json"
    arguments = ["--device", "cpu", "--ranks", "2", "--samples", "2", "--shapes", "48x32", "--rows", "1,20"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    completed = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments, "--out", str(out)],
        capture_output=True, text=True, timeout=170, check=False, env=environment,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    records = json.loads(out.read_text())["records"]
    assert len(records) == 6
    assert {each["provider"] for each in records} == {"isthmus", "isthmus_separate", "gloo_separate"}
    assert all(each["wrong"] == 0 and each["time_us"]["min"] > 0 for each in records), records
