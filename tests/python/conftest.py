"""Fixtures and helpers: communicators of several ranks in this process, MPI jobs, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus import launch

TIMEOUT_S = 20.0


def isolate_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the profile and configuration of the developer from the environment."""
    for name in list(os.environ):
        if name.startswith("ISTHMUS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ISTHMUS_PROFILE", "none")
    monkeypatch.setenv("ISTHMUS_CONFIG", "none")


@pytest.fixture(autouse=True)
def _isolated_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_configuration(monkeypatch)


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda size: f"ranks{size}")
def ranks(request: pytest.FixtureRequest) -> Iterator[list[isthmus.Communicator]]:
    """All ranks of a communicator of size 1 to 4 in this process."""
    communicators = isthmus.Communicator.create_all(request.param, timeout=TIMEOUT_S)
    yield communicators
    for communicator in communicators:
        communicator.close()


@pytest.fixture
def pair() -> Iterator[list[isthmus.Communicator]]:
    """Both ranks of a communicator of size 2 in this process."""
    communicators = isthmus.Communicator.create_all(2, timeout=TIMEOUT_S)
    yield communicators
    for communicator in communicators:
        communicator.close()


def run_on_all_ranks(
    communicators: list[isthmus.Communicator], work: Callable[[isthmus.Communicator], Any]
) -> list[Any]:
    """Runs `work` for every rank in a separate thread. Returns the results in rank order.

    Raises the first exception of any rank. The wait for threads is limited.
    """
    results: list[Any] = [None] * len(communicators)
    errors: list[BaseException] = []

    def run_rank(index: int) -> None:
        try:
            results[index] = work(communicators[index])
        except BaseException as failure:
            errors.append(failure)

    threads = [
        threading.Thread(target=run_rank, args=(index,), daemon=True) for index in range(len(communicators))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * TIMEOUT_S)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


def random_array(dtype: np.dtype, count: int, seed: int) -> np.ndarray:
    """Returns random values of a dtype that are small enough for finite sums and products."""
    generator = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return generator.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    return generator.uniform(-2.0, 2.0, count).astype(dtype)


def poisoned(dtype: np.dtype, count: int) -> np.ndarray:
    """Returns an array filled with bytes 0xFF (NaN or -1), so that missing writes are detected."""
    return np.full(count * dtype.itemsize, 0xFF, np.uint8).view(dtype)


def run_mpi_job(
    ranks: int, program: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program with `ranks` ranks under MPICH."""
    launcher = launch.launcher("mpich")
    command = [*launcher.command(ranks, bind=False), sys.executable, str(program), *arguments]
    return subprocess.run(
        command,
        env=launch.environment(launcher, ranks) | variables,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def run_cli(*arguments: str, timeout: float = 100, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the `isthmus` command of the package under test."""
    return subprocess.run(
        [sys.executable, "-m", "isthmus", *arguments],
        env=os.environ | {"COLUMNS": "200"} | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
