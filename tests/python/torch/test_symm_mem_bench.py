"""bench/gpu/torch_symm_mem.py on the CPU: Isthmus against gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[3] / "bench/gpu/torch_symm_mem.py"


def test_allreduces_are_checked_and_compared(tmp_path: Path) -> None:
    out = tmp_path / "allreduce.json"
    arguments = ["--device", "cpu", "--ranks", "2", "--samples", "3", "--sizes", "128,65536", "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    completed = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True, text=True, timeout=170, check=False, env=environment,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    records = json.loads(out.read_text())["records"]
    cases = {(each["provider"], each["dtype"], each["bytes"]) for each in records}
    assert len(cases) == len(records) == 8, cases
    assert {provider for provider, _, _ in cases} == {"gloo", "isthmus"}
    assert all(each["wrong"] == 0 and each["time_us"]["min"] > 0 for each in records), records
