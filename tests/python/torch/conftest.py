"""Fixtures: ranks of a torch.distributed job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from crew import Crew

RANKS = 4


class _Holder:
    """One crew for all tests; a new one after a test that broke it."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def get(self) -> Crew:
        if self._crew is None or self._crew.broken:
            self.close()
            self._crew = Crew(RANKS)
        return self._crew

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None


@pytest.fixture(scope="session")
def _crews() -> Iterator[_Holder]:
    holder = _Holder()
    yield holder
    holder.close()


@pytest.fixture
def crew(_crews: _Holder) -> Crew:
    """Four ranks on the host."""
    return _crews.get()


@pytest.fixture
def fresh_crew() -> Iterator[Callable[..., Crew]]:
    """Makes crews of new processes, for what keeps state of its own (DeepSpeed) and for what ends a process."""
    crews: list[Crew] = []

    def make(**environment: str) -> Crew:
        crews.append(Crew(RANKS, **environment))
        return crews[-1]

    yield make
    for crew in crews:
        crew.close()
