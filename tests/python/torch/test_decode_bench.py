"""bench/gpu/torch_decode.py on the CPU: two jobs that take turns."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

PROGRAM = Path(__file__).resolve().parents[3] / "bench/gpu/torch_decode.py"


def test_jobs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("torch_decode", PROGRAM)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    indexes = [0, 0, 1, 2, 3, 0]
    spans: list[tuple[float, float, int]] = []
    cores: list[list[set[int]]] = [[] for _ in range(4)]

    def run(thread: int) -> None:
        job, rank = divmod(thread, 2)
        turns = program.Turns(dist.TCPStore("127.0.0.1", server.port), job, rank, 2)
        for index in indexes:
            with turns.turn(index):
                begin = time.monotonic()
                time.sleep(0.01 * (1 + rank))
                cores[thread].append(os.sched_getaffinity(0))
                spans.append((begin, time.monotonic(), job))

    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(run, thread) for thread in range(4)]:
            each.result(timeout=100)
    spans.sort()
    order = [job for _, _, job in spans]
    assert order == [0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    for index, (begin, _, job) in enumerate(spans):
        ends = [end for _, end, other in spans[:index] if other != job]
        assert max(ends, default=begin) <= begin, "two jobs work at the same time"
    assert cores[0] == cores[2] and cores[1] == cores[3]
    assert all(len(each) == 1 for rank in cores for each in rank)
    assert os.cpu_count() == 1 or not set.union(*cores[0]) & set.union(*cores[1])


def test_steps_are_checked_and_compared(tmp_path: Path) -> None:
    out = tmp_path / "decode.json"
    arguments = ["--device", "cpu", "--ranks", "2", "--samples", "2", "--rounds", "1", "--out", str(out)]
    completed = subprocess.run(
        [sys.executable, str(PROGRAM), "/none/libnone.so", *arguments],
        capture_output=True, text=True, timeout=170, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    records = json.loads(out.read_text())["records"]
    points = {(each["provider"], each["batch"]) for each in records}
    assert len(records) == 6
    assert points == {(name, batch) for name in ("nccl", "nccl_preload", "none") for batch in (1, 2)}
    for each in records:
        assert each["time_us"]["min"] > 0
        assert ("gain_pct" in each) == (each["provider"] != "nccl")
        if "gain_pct" in each:
            low, high = each["gain_quartiles_pct"]
            assert low <= each["gain_pct"] <= high
