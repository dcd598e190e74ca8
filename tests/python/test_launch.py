"""Launchers of MPI programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus import launch


@pytest.mark.skipif(not Path(launch.launcher("mpich").executable).is_file(), reason="needs MPICH")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_bound_rank_runs_on_an_allowed_core() -> None:
    cores = os.sched_getaffinity(0)
    last = max(cores)
    launcher = launch.launcher("mpich")
    program = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    os.sched_setaffinity(0, {last})
    try:
        printed = subprocess.run(
            [*launcher.command(1), *program],
            env=launch.environment(launcher, 1),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        os.sched_setaffinity(0, cores)
    assert printed.stdout.split() == [str(last)]
