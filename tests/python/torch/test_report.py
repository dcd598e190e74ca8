"""report(): the path of every collective, including fallbacks to PyTorch's own backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses

import isthmus.torch
from isthmus.torch import _environment


def count_calls() -> list[dict[str, Any]]:
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(100_000))
    dist.all_gather_into_tensor(torch.empty(40), torch.ones(10))
    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.broadcast(torch.ones(2), 0, group=pair)
    return [row.__dict__ for row in isthmus.torch.report()]


def test_report_counts_calls_and_bytes_by_path(ranks: RankProcesses) -> None:
    for rank, rows in enumerate(ranks.run(count_calls)):
        reduced = [row for row in rows if row["collective"] == "allreduce"]
        paths = {row["path"] for row in reduced}
        assert paths == {"shm:packet", "shm:two_shot_adaptive"}, "the sizes use different rules"
        assert sum(row["calls"] for row in reduced) == 4
        assert sum(row["bytes"] for row in reduced) == 3 * 16 + 400_000
        assert all("rule" in row["reason"] and row["device"] == "cpu" for row in rows)
        gathered = [row for row in rows if row["collective"] == "allgather"]
        assert [(row["calls"], row["bytes"]) for row in gathered] == [(1, 40)]
        in_pair = [row for row in rows if row["collective"] == "broadcast"]
        assert len(in_pair) == (1 if rank < 2 else 0)
        assert len({row["group"] for row in rows}) == (2 if rank < 2 else 1)


def change_rules() -> list[str]:
    """Changes rules with two groups, messages, work in progress and a tensor of the symmetric heap."""
    rank, size = dist.get_rank(), dist.get_world_size()
    second_group = dist.new_group()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    total = torch.arange(1000.0) * (size * (size + 1) / 2)
    heap_tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    paths_used = []
    for turn, algorithm in enumerate(("one_shot", "two_shot", "one_shot")):
        pending = torch.arange(1000.0) * (rank + 1)
        work = dist.all_reduce(pending, async_op=True)
        os.environ["ISTHMUS_RULE"] = f"collective=allreduce use=shm:{algorithm}"
        isthmus.torch.reload_rules()
        work.wait()
        assert torch.equal(pending, total)
        isthmus.torch.reset_report()
        fresh = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
        for group, data in (
            (None, torch.empty(1000)),
            (second_group, torch.empty(1000)),
            (None, heap_tensor),
            (None, fresh),
        ):
            data.copy_(torch.arange(1000.0) * (rank + 1))
            dist.all_reduce(data, group=group)
            assert torch.equal(data, total)
        message = torch.full((100,), float(rank + turn))
        others = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, message, (rank + 1) % size),
                dist.P2POp(dist.irecv, received := torch.empty(100), (rank - 1) % size),
            ]
        )
        for other in others:
            other.wait()
        assert received.tolist() == [float((rank - 1) % size + turn)] * 100
        rows = [row for row in isthmus.torch.report() if row.collective == "allreduce"]
        paths_used += [row.path for row in rows if row.bytes > 99]  # without the agreements of the memory pool
    return paths_used


def test_rules_can_change_between_calls(fresh_ranks: Callable[..., RankProcesses]) -> None:
    for paths_used in fresh_ranks().run(change_rules):
        assert paths_used == ["shm:one_shot"] * 2 + ["shm:two_shot"] * 2 + ["shm:one_shot"] * 2, (
            "two groups each"
        )


def test_rules_can_change_with_debug_wrapper(fresh_ranks: Callable[..., RankProcesses]) -> None:
    ranks = fresh_ranks(TORCH_DISTRIBUTED_DEBUG="DETAIL")
    for paths_used in ranks.run(change_rule_once):
        assert paths_used == ["shm:two_shot"]
    ranks.run(call_operator)


def call_operator() -> None:
    """Operators find the backend of their group in the wrapper."""
    name = dist.group.WORLD.group_name
    output, _ = torch.ops.isthmus.allgather_matmul(torch.ones(2, 3), torch.ones(4, 3), name)
    assert output.equal(torch.full((2 * dist.get_world_size(), 4), 3.0))


def change_rule_once() -> list[str]:
    dist.all_reduce(torch.ones(1000))
    os.environ["ISTHMUS_RULE"] = "collective=allreduce use=shm:two_shot"
    isthmus.torch.reload_rules()
    isthmus.torch.reset_report()
    dist.all_reduce(torch.ones(1000))
    return [row.path for row in isthmus.torch.report() if row.collective == "allreduce"]


def test_child_can_remove_rules_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_RULE", "collective=barrier use=shm")
    monkeypatch.setenv("ISTHMUS_DMA_ALLGATHER", "1")
    _environment.apply_environment()
    code = "import os, isthmus.torch; print(os.environ['ISTHMUS_RULE'])"
    child = os.environ | {"ISTHMUS_DMA_ALLGATHER": "0"}
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, env=child, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "collective=barrier use=shm"
    monkeypatch.setenv("ISTHMUS_DMA_ALLGATHER", "0")
    _environment.apply_environment()
    assert os.environ["ISTHMUS_RULE"] == "collective=barrier use=shm"


def unsupported_reductions() -> list[dict[str, Any]]:
    bits = torch.tensor([1 << dist.get_rank()])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.item() == 0b1111
    sparse = torch.sparse_coo_tensor([[dist.get_rank()]], [2.0], (4,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [2.0] * 4
    return [row.__dict__ for row in isthmus.torch.report()]


def test_unsupported_reductions_fall_back_to_gloo(ranks: RankProcesses) -> None:
    for rows in ranks.run(unsupported_reductions):
        assert {row["path"] for row in rows} == {"torch:gloo"}
        assert {row["reason"] for row in rows} == {
            "Isthmus has no bitwise reductions",
            "Isthmus has no sparse reduction",
        }


def test_variables_become_rules_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_RULE", "collective=barrier use=shm")
    monkeypatch.setenv("ISTHMUS_OPTION", "")
    monkeypatch.setenv("ISTHMUS_DMA_ALLGATHER_MAX_BYTES", "1048576")
    _environment.apply_environment()
    assert os.environ["ISTHMUS_RULE"] == "collective=barrier use=shm", "off by default"
    monkeypatch.setenv("ISTHMUS_DMA_ALLGATHER", "1")
    _environment.apply_environment()
    _environment.apply_environment()
    first, second = os.environ["ISTHMUS_RULE"].split("; ")
    assert first == "collective=barrier use=shm"
    assert second.endswith("use=copy_engine") and "allgather" in second
    assert os.environ["ISTHMUS_OPTION"] == "backend.copy_engine.staging_bytes=1048576"
    monkeypatch.setenv("ISTHMUS_DMA_ALLGATHER_MAX_BYTES", "2097152")
    _environment.apply_environment()
    assert os.environ["ISTHMUS_OPTION"] == "backend.copy_engine.staging_bytes=2097152"
    monkeypatch.setenv("ISTHMUS_DMA_ALLGATHER", "0")
    _environment.apply_environment()
    assert os.environ["ISTHMUS_RULE"] == "collective=barrier use=shm", "as before"
    assert os.environ["ISTHMUS_OPTION"] == ""


@pytest.mark.parametrize(
    ("name", "value"), [("ISTHMUS_DMA_ALLGATHER", "yes"), ("ISTHMUS_DMA_ALLGATHER_MAX_BYTES", "64M")]
)
def test_invalid_variable_raises(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("ISTHMUS_DMA_ALLGATHER", "1")
    monkeypatch.setenv("ISTHMUS_RULE", "")
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        _environment.apply_environment()


def allgather_paths() -> dict[str, Any]:
    dist.all_gather_into_tensor(torch.empty(40), torch.ones(10))
    return {row.collective: row.path for row in isthmus.torch.report()}


def test_variables_do_not_affect_host_tensors(fresh_ranks: Callable[..., RankProcesses]) -> None:
    variables = {"ISTHMUS_DMA_ALLGATHER": "1", "ISTHMUS_DMA_ALLGATHER_MAX_BYTES": "4096"}
    for paths in fresh_ranks(**variables).run(allgather_paths):
        assert paths["allgather"].startswith("shm")
