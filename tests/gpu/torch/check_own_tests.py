#!/usr/bin/env python3
"""Runs PyTorch's torch.distributed tests on NCCL with the preload library: check_own_tests.py OUT LIB [S].

The tests are part of PyTorch's wheel and use two ranks. They are distributed over several processes, each of
which runs its tests sequentially. Ranks are forked from a process that has imported PyTorch, because the import
takes longer than most tests. That process does not use CUDA, which a forked child could not use. Failing tests
run again, with the library and without it. A test is a problem if it fails twice with the library and passes
without it. Tests that do not fit into S (300) seconds are counted. ISTHMUS_OWN_TESTS selects tests
(comma-separated).
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from children import NO_END, run_with_children

RANKS = 2
TEST_S = 60  # PyTorch's limit for a test
LIST_S = 150
ENDED = re.compile(r"^== (\w+) ended with (\d+)$", re.MULTILINE)
SKIPPED = 5  # exit code of a test that PyTorch skips
NOT_RUN = -1


def run_rank(environment: dict[str, str], work: Callable[..., None], *given: Any, **named: Any) -> None:
    os.environ |= environment  # the fork server still has the environment of the first test
    try:
        work(*given, **named)
    except SystemExit as ended:
        sys.stdout.flush()
        ctypes.CDLL(None).exit(ended.code or 0)  # the normal exit of a forked child skips the library's report


def rank_process(target: Callable[..., None], args: tuple[Any, ...], **named: Any) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo"])
    return context.Process(target=run_rank, args=(dict(os.environ), target, *args), **named)


def own_tests() -> type[unittest.TestCase]:
    """Returns PyTorch's test suite, set up as in its own program: each test starts one process per rank."""
    folder = os.environ["TEMP_DIR"]
    os.environ |= {"WORLD_SIZE": str(RANKS), "INIT_METHOD": f"file://{folder}/shared_init_file"}
    os.environ.setdefault("BACKEND", "nccl")
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    class OwnTests(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(rank_process)

    OwnTests.__qualname__ = "OwnTests"  # so that ranks find it in this module
    return OwnTests


if "TEMP_DIR" in os.environ:
    OwnTests = own_tests()


def child(words: list[str], variables: dict[str, str], limit_s: float) -> str:
    """Runs this program in a child process and returns its output."""
    variables = {"NCCL_NVLS_ENABLE": "0", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_S)} | variables
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *words]
        return run_with_children(command, {"TEMP_DIR": folder} | variables, limit_s)[1]


def run_tests(names: list[str], variables: dict[str, str], end: float) -> dict[str, tuple[int, str]]:
    """Returns exit code and output of each test; NOT_RUN for tests that had not finished at `end`."""

    def some(chosen: list[str]) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        while (left := [name for name in chosen if name not in found]) and end - time.monotonic() > 10:
            output = child(["--each", *left], variables, end - time.monotonic())
            begin = 0
            for ended in ENDED.finditer(output):
                found[ended[1]] = (int(ended[2]), output[begin : ended.start()])
                begin = ended.end()
            ending = next((name for name in left if name not in found), None)
            if ending and time.monotonic() < end:  # the test ended its process; the next one runs the rest
                found[ending] = (NO_END, output[begin:])
        return {name: (NOT_RUN, "") for name in chosen} | found

    # Adjacent tests are similar, so each process gets every n-th test.
    every = max(1, min(len(names), (os.cpu_count() or 2) // (RANKS + 1)))
    with ThreadPoolExecutor(every) as threads:
        parts = threads.map(some, [names[first::every] for first in range(every)])
        return {name: result for part in parts for name, result in part.items()}


def failing(results: dict[str, tuple[int, str]]) -> list[str]:
    return [name for name, (code, _) in results.items() if code not in (0, SKIPPED, NOT_RUN)]


def check(out: Path, library: str, seconds: float) -> int:
    begin = time.monotonic()
    names: list[str] = json.loads(child(["--list"], {}, LIST_S).splitlines()[-1])
    preloaded = {"LD_PRELOAD": library, "ISTHMUS_NCCL_REPORT": "1"} if library else {}
    if chosen := os.environ.get("ISTHMUS_OWN_TESTS"):
        names = [name for name in names if name in chosen.split(",")]
    ours = run_tests(names, preloaded, begin + seconds * 0.6)
    failed = failing(ours)
    again = run_tests(failed, preloaded, begin + seconds * 0.8)
    theirs = run_tests(failed, {}, begin + seconds)
    unsteady = [name for name in failed if again[name][0] in (0, SKIPPED)]
    problems = [name for name in failed if name not in unsteady and theirs[name][0] in (0, NOT_RUN)]
    counts = Counter(code for code, _ in ours.values())
    used = sum(re.search(r"nccl\w+ +(p2p|copy_engine)", output) is not None for _, output in ours.values())
    result: dict[str, Any] = {
        "tests": len(names),
        "passed": counts[0],
        "skipped": counts[SKIPPED],
        "not run": counts[NOT_RUN],
        "with calls used": used,
        "passed when run again": unsteady,
        "also fail without the library": sorted(set(failed) - set(problems) - set(unsteady)),
        "problems": {name: ours[name][1][-30000:] for name in problems},
        "one that fails anyway": next((theirs[name][1][-3000:] for name in failing(theirs)), ""),
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 1 if problems or not counts[0] or (library and not used) else 0


def main() -> int:
    match sys.argv[1:]:
        case ["--list"]:
            print(json.dumps(unittest.TestLoader().getTestCaseNames(OwnTests)))
            return 0
        case ["--each", *names]:
            for name in names:
                outcome = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([OwnTests(name)]))
                code = SKIPPED if outcome.skipped else 0 if outcome.wasSuccessful() else 1
                sys.stderr.flush()
                print(f"== {name} ended with {code}", flush=True)
            return 0
        case [out, library, *seconds]:
            return check(Path(out), library, float(seconds[0]) if seconds else 300)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
