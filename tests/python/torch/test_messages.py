"""send and recv on CPU tensors, with and without coalescing."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses


def both_send_first() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for peer in range(size):
        if peer == rank:
            continue
        received = torch.full((50000,), -1.0)
        sending = dist.isend(torch.full((50000,), 10.0 * rank + peer), peer)
        receiving = dist.irecv(received, peer)
        sending.wait()
        receiving.wait()
        assert torch.equal(received, torch.full((50000,), 10.0 * peer + rank))


def test_both_sides_may_send_first(ranks: RankProcesses) -> None:
    ranks.run(both_send_first)


def in_order() -> None:
    if dist.get_rank() == 0:
        for number in range(20):
            dist.send(torch.tensor([number]), 1)
    elif dist.get_rank() == 1:
        data = torch.tensor([-1])
        for number in range(20):
            dist.recv(data, 0)
            assert data.item() == number


def test_messages_keep_their_order(ranks: RankProcesses) -> None:
    ranks.run(in_order)


def tags() -> None:
    if dist.get_rank() == 0:
        works = [dist.isend(torch.tensor([tag]), 3, tag=tag) for tag in (1, 2, 3)]
        for work in works:
            work.wait()
    elif dist.get_rank() == 3:
        for tag in (3, 1, 2):
            data = torch.tensor([-1])
            dist.recv(data, 0, tag=tag)
            assert data.item() == tag


def test_tags_select_messages(ranks: RankProcesses) -> None:
    ranks.run(tags)


def ring() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [torch.empty(3), torch.empty(3)]
    operations = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.isend, torch.full((3,), 100.0 + rank), (rank - 1) % size),
        dist.P2POp(dist.irecv, received[0], (rank - 1) % size),
        dist.P2POp(dist.irecv, received[1], (rank + 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received[0].tolist() == [float((rank - 1) % size)] * 3
    assert received[1].tolist() == [100.0 + (rank + 1) % size] * 3


def test_batched_messages_in_a_ring(ranks: RankProcesses) -> None:
    ranks.run(ring)


def exchange_in_pair() -> None:
    # The other two ranks do nothing, because a pair needs no other rank.
    if dist.get_rank() == 1:
        work = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(2), 2)])
    elif dist.get_rank() == 2:
        work = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.zeros(2), 1)])
    else:
        work = []
    for each in work:
        each.wait()


def test_pair_needs_no_other_rank(ranks: RankProcesses) -> None:
    ranks.run(exchange_in_pair)


def receive_from_any_source() -> None:
    with pytest.raises(NotImplementedError, match="pass the source rank"):
        dist.recv(torch.empty(1))


def test_any_source_raises_with_hint(ranks: RankProcesses) -> None:
    ranks.run(receive_from_any_source)
