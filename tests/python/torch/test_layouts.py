"""Calls move elements in logical order, whatever the strides are, also if they differ between ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from layouts import messages, movements, sums
from rank_processes import RankProcesses


def test_movements_of_any_layout(ranks: RankProcesses) -> None:
    ranks.run(movements)


def test_reductions_of_any_layout(ranks: RankProcesses) -> None:
    ranks.run(sums)


def test_messages_of_any_layout(ranks: RankProcesses) -> None:
    ranks.run(messages)


def special_tensors() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    number = torch.tensor([complex(rank, 1), complex(2, rank)])
    gathered = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(gathered, number.imag)
    for source, actual in enumerate(gathered):
        assert actual.tolist() == [1.0, float(source)]
    dist.broadcast(number.imag, 3)
    assert number.tolist() == [complex(rank, 1), complex(2, 3)], "only the imaginary parts change"

    columns = torch.zeros(5, size)
    columns[:, rank] = rank + 1.0
    dist.all_gather(list(columns.unbind(1)), columns[:, rank])  # the input is one of the outputs
    assert torch.equal(columns, torch.arange(1.0, size + 1).expand(5, size))

    repeated = torch.tensor([float(rank)]).expand(6)
    whole = torch.full((6 * size,), -1.0)
    dist.all_gather_into_tensor(whole, repeated)
    assert torch.equal(whole, torch.arange(float(size)).repeat_interleave(6))
    with pytest.raises(ValueError, match=r"several of its elements share memory; call \.clone"):
        dist.all_reduce(repeated)

    with torch.inference_mode():
        data = torch.full((3, 2), float(rank)).t()
    dist.all_reduce(data, async_op=True).wait()
    assert torch.equal(data, torch.full((2, 3), 6.0))
    leaf = torch.full((4, 2), float(rank), requires_grad=True)
    dist.broadcast(leaf.detach()[:, 1], 2)
    assert leaf.tolist() == [[float(rank), 2.0]] * 4

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    lazy = torch.tensor([1 + 1j * rank]).conj()  # conjugated when it is read
    outputs = [torch.zeros(1, dtype=torch.complex64) for _ in range(size)]
    backend.allgather([outputs], [lazy]).wait()
    assert [each.item() for each in outputs] == [complex(1, -source) for source in range(size)]


def test_views_expanded_and_lazy_tensors(ranks: RankProcesses) -> None:
    ranks.run(special_tensors)
