"""Fixtures for the ranks of a torch.distributed job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rank_processes import RankProcesses

RANKS = 4


class _RankCache:
    """Shares rank processes between tests and replaces them after a test that broke them."""

    def __init__(self) -> None:
        self._ranks: RankProcesses | None = None

    def get(self) -> RankProcesses:
        if self._ranks is None or self._ranks.broken:
            self.close()
            self._ranks = RankProcesses(RANKS)
        return self._ranks

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


@pytest.fixture(scope="session")
def _rank_cache() -> Iterator[_RankCache]:
    holder = _RankCache()
    yield holder
    holder.close()


@pytest.fixture
def ranks(_rank_cache: _RankCache) -> RankProcesses:
    """Returns four ranks on the host."""
    return _rank_cache.get()


@pytest.fixture
def fresh_ranks() -> Iterator[Callable[..., RankProcesses]]:
    """Starts new processes, for libraries with global state (DeepSpeed) and for tests that end a process."""
    started: list[RankProcesses] = []

    def make(**environment: str) -> RankProcesses:
        started.append(RankProcesses(RANKS, **environment))
        return started[-1]

    yield make
    for ranks in started:
        ranks.close()
