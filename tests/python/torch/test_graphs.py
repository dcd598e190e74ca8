"""Graphs with collectives of a group that has ended are not replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import isthmus.torch
from isthmus.torch._graphs import guard_replay


class Communicator:
    group = "trainers"
    has_ended = False


class Graph:
    """Takes the place of torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.replays = 0

    def capture_begin(self, pool: Any = None) -> None:
        pass

    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        self.replays += 1


def test_graph_of_ended_group_is_refused() -> None:
    captured: list[Any] = [Communicator()]  # of a capture that has failed

    def take() -> list[Any]:
        result, captured[:] = captured[:], []
        return result

    guard_replay(Graph, take)
    guard_replay(Graph, take)  # without effect
    own_work, collectives = Graph(), Graph()
    own_work.capture_begin()
    own_work.capture_end()
    collectives.capture_begin(pool=1)
    communicator = Communicator()
    captured.append(communicator)
    collectives.capture_end()
    for graph in (own_work, collectives):
        graph.replay()
    communicator.has_ended = True
    own_work.replay()
    with pytest.raises(RuntimeError, match="collectives of process group trainers"):
        collectives.replay()
    assert (own_work.replays, collectives.replays) == (2, 1)


def test_graphs_of_pytorch_are_guarded() -> None:
    assert isthmus.torch  # registers the backend
    assert hasattr(torch.cuda.CUDAGraph.replay, "_isthmus")
