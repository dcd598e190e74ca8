"""Refuses to replay captured graphs with collectives of a group that has changed.

Such a graph contains addresses of a communicator that no longer exists. Graphs without collectives stay valid.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def guard_replay(graph_class: Any, take_captured: Callable[[], list[Any]]) -> None:
    """Wraps the methods of torch.cuda.CUDAGraph.

    `take_captured` returns the communicators of all captured calls since the previous take. Captures of several
    threads at the same time are not distinguished.
    """
    if hasattr(graph_class.replay, "_isthmus"):
        return
    begin, end, replay = graph_class.capture_begin, graph_class.capture_end, graph_class.replay

    @functools.wraps(begin)
    def capture_begin(self: Any, *arguments: Any, **named: Any) -> None:
        take_captured()  # of a capture that has failed
        begin(self, *arguments, **named)

    @functools.wraps(end)
    def capture_end(self: Any, *arguments: Any, **named: Any) -> None:
        end(self, *arguments, **named)
        self._isthmus_communicators = take_captured()

    @functools.wraps(replay)
    def checked_replay(self: Any, *arguments: Any, **named: Any) -> None:
        for communicator in getattr(self, "_isthmus_communicators", ()):
            if communicator.has_ended:
                raise RuntimeError(
                    f"isthmus: this graph contains collectives of process group {communicator.group}, which "
                    "failed, changed its members or ended after the capture; capture the graph again"
                )
        replay(self, *arguments, **named)

    checked_replay._isthmus = True  # type: ignore[attr-defined]
    graph_class.capture_begin, graph_class.capture_end = capture_begin, capture_end
    graph_class.replay = checked_replay
