#!/usr/bin/env python3
"""PyTorch's own tests of torch.distributed over NCCL and its preloaded library: check_own_tests.py OUT LIB [S].

The tests are those of PyTorch's wheel, two ranks each, several at a time. What fails is played again without
the library: only what passes then is a problem. What did not fit into S (300) seconds is counted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RANKS = 2
TEST_LIMIT_S = 100
SKIPPED = 5  # the exit code of a test that PyTorch skips
NOT_RUN = -1


def own_tests() -> type[unittest.TestCase]:
    """PyTorch's suite, set up as its own program does: a process a rank, started anew for each test."""
    folder = os.environ["TEMP_DIR"]
    os.environ |= {"WORLD_SIZE": str(RANKS), "INIT_METHOD": f"file://{folder}/shared_init_file"}
    os.environ.setdefault("BACKEND", "nccl")
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    class OwnTests(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

    OwnTests.__qualname__ = "OwnTests"  # started processes find it in this module
    return OwnTests


if "TEMP_DIR" in os.environ:
    OwnTests = own_tests()


def child(words: list[str], variables: dict[str, str], limit_s: float) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, __file__, *words],
                env=os.environ | {"TEMP_DIR": folder, "NCCL_NVLS_ENABLE": "0"} | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, f"no end within {limit_s:.0f} s"
        return done.returncode, done.stdout


def play(names: list[str], variables: dict[str, str], end: float) -> dict[str, tuple[int, str]]:
    """Exit code and output of each test; NOT_RUN for what was not begun before `end`."""

    def one(name: str) -> tuple[int, str]:
        return child(["--one", name], variables, TEST_LIMIT_S) if time.monotonic() < end else (NOT_RUN, "")

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // (RANKS + 1))) as threads:
        return dict(zip(names, threads.map(one, names), strict=True))


def check(out: Path, library: str, seconds: float) -> int:
    begin = time.monotonic()
    listing = child(["--list"], {}, TEST_LIMIT_S)[1]
    names: list[str] = json.loads(listing.splitlines()[-1])
    preloaded = {"LD_PRELOAD": library, "ISTHMUS_NCCL_REPORT": "1"} if library else {}
    ours = play(names, preloaded, begin + seconds * 0.7)
    failed = [name for name, (code, _) in ours.items() if code not in (0, SKIPPED, NOT_RUN)]
    theirs = play(failed, {}, begin + seconds) if failed else {}
    problems = [name for name in failed if theirs[name][0] in (0, NOT_RUN)]
    counts = Counter(code for code, _ in ours.values())
    taken = sum(re.search(r"nccl\w+ +(p2p|copy_engine)", said) is not None for _, said in ours.values())
    result: dict[str, Any] = {
        "tests": len(names),
        "passed": counts[0],
        "skipped": counts[SKIPPED],
        "not run": counts[NOT_RUN],
        "with calls taken": taken,
        "fail without the library, too": sorted(set(failed) - set(problems)),
        "problems": {name: ours[name][1][-3000:] for name in problems},
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 1 if problems or not counts[0] or (library and not taken) else 0


def main() -> int:
    match sys.argv[1:]:
        case ["--list"]:
            print(json.dumps(unittest.TestLoader().getTestCaseNames(OwnTests)))
            return 0
        case ["--one", name]:
            played = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([OwnTests(name)]))
            return SKIPPED if played.skipped else 0 if played.wasSuccessful() else 1
        case [out, library, *seconds]:
            return check(Path(out), library, float(seconds[0]) if seconds else 300)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
