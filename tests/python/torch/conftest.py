"""Fixtures: ranks of a torch.distributed job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from rank_processes import RankProcesses

RANKS = 4


class _RankCache:
    """One crew for all tests; a new one after a test that broke it."""

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
    """Four ranks on the host."""
    return _rank_cache.get()


@pytest.fixture
def fresh_ranks() -> Iterator[Callable[..., RankProcesses]]:
    """Makes crews of new processes, for what keeps state of its own (DeepSpeed) and for what ends a process."""
    started: list[RankProcesses] = []

    def make(**environment: str) -> RankProcesses:
        started.append(RankProcesses(RANKS, **environment))
        return started[-1]

    yield make
    for ranks in started:
        ranks.close()
