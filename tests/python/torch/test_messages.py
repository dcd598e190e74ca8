"""send and recv on CPU tensors, with and without coalescing."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

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


def many_tags() -> tuple[int, int, int]:
    """Returns how many threads, descriptors and recordings the messages of 100 more tags added."""

    def resources() -> tuple[int, int, int]:
        recordings = set(re.findall(r"/dev/shm/isthmus\S*", Path("/proc/self/maps").read_text()))
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), len(recordings)

    def exchange(tags: range) -> None:
        data = torch.full((40,), -1.0)
        for tag in tags:
            if dist.get_rank() == 1:
                dist.send(torch.full((40,), float(tag)), 2, tag=tag)
            elif dist.get_rank() == 2:
                dist.recv(data, 1, tag=tag)
                assert data.tolist() == [float(tag)] * 40

    exchange(range(3))
    before = resources()
    exchange(range(1000, 1100))
    return tuple(after - earlier for after, earlier in zip(resources(), before, strict=True))


def test_tags_share_one_connection(ranks: RankProcesses) -> None:
    assert ranks.run(many_tags) == [(0, 0, 0)] * ranks.size


def out_of_order() -> None:
    """The receiver requests messages in another order, some before and some after they arrive."""
    lengths = {1: 3, 2: 100_000, 3: 0, 4: 120, 5: 121, 6: 50_000}
    if dist.get_rank() == 0:
        works = [dist.isend(torch.full((count,), float(tag)), 3, tag=tag) for tag, count in lengths.items()]
        works += [dist.isend(torch.full((2,), 10.0 + number), 3, tag=7) for number in range(3)]
        for work in works:
            work.wait()
    elif dist.get_rank() == 3:
        data = {tag: torch.full((count,), -1.0) for tag, count in lengths.items()}
        last = [torch.zeros(2) for _ in range(3)]
        early = dist.irecv(data[6], 0, tag=6)
        waiting = dist.irecv(last[0], 0, tag=7)
        for tag in (5, 2, 4, 3, 1):
            dist.recv(data[tag], 0, tag=tag)
        early.wait()
        waiting.wait()
        for each in last[1:]:
            dist.recv(each, 0, tag=7)
        for tag, count in lengths.items():
            assert data[tag].tolist() == [float(tag)] * count
        assert [each.tolist() for each in last] == [[10.0] * 2, [11.0] * 2, [12.0] * 2]


def test_tags_in_any_order(ranks: RankProcesses) -> None:
    ranks.run(out_of_order)


def receive_while_other_waits() -> None:
    """The message of the first receive call is sent only after that of the second has arrived."""
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), 1, tag=2)
        dist.recv(torch.zeros(1), 1)
        dist.send(torch.full((2,), 5.0), 1, tag=1)
    elif dist.get_rank() == 1:
        first, second = torch.zeros(2), torch.zeros(2)
        waiting = dist.irecv(first, 0, tag=1)
        dist.irecv(second, 0, tag=2).wait()
        assert second.tolist() == [1.0, 1.0]
        dist.send(torch.zeros(1), 0)
        waiting.wait()
        assert first.tolist() == [5.0, 5.0]


def test_tags_do_not_wait_for_each_other(ranks: RankProcesses) -> None:
    ranks.run(receive_while_other_waits)


def unequal_messages() -> None:
    if dist.get_rank() == 0:
        for data in (torch.ones(3), torch.ones(3000), torch.ones(4, dtype=torch.int32), torch.full((3,), 7.0)):
            dist.send(data, 1)
    elif dist.get_rank() == 1:
        data = torch.full((4,), -1.0)
        with pytest.raises(
            dist.DistBackendError, match=r"rank 0 with tag 0 has 12 bytes of Float; the tensor has 16"
        ):
            dist.recv(data, 0)
        with pytest.raises(dist.DistBackendError, match="has 12000 bytes of Float; the tensor has 16 bytes"):
            dist.recv(data, 0)
        with pytest.raises(
            dist.DistBackendError, match="has 16 bytes of Int; the tensor has 16 bytes of Float"
        ):
            dist.recv(data, 0)
        assert data.tolist() == [-1.0] * 4
        dist.recv(data[:3], 0)
        assert data.tolist() == [7.0] * 3 + [-1.0]


def test_unequal_sizes_and_dtypes_raise(ranks: RankProcesses) -> None:
    ranks.run(unequal_messages)


def failing_batches() -> None:
    """After an exception inside a batch, later calls of the group work as before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    untouched = torch.full((3,), -1.0)
    receive = dist.P2POp(dist.irecv, untouched, (rank + 1) % size)
    itself = dist.P2POp(dist.isend, torch.ones(3), (rank + 1) % size)
    itself.group_peer = rank
    overlapping = dist.P2POp(dist.irecv, torch.zeros(1).expand(3), (rank + 1) % size)
    for wrong in (itself, overlapping):
        with pytest.raises(ValueError, match=r"same as the rank|peer is|share memory"):
            dist.batch_isend_irecv([receive, wrong])
        assert_group_works()
    for device in (None, torch.device("cpu")):
        with pytest.raises(KeyError), dist._coalescing_manager(device=device):
            dist.all_reduce(torch.ones(2))
            raise KeyError
        assert_group_works()
    with (
        pytest.raises(RuntimeError, match="so no call was started"),
        dist._coalescing_manager(device=torch.device("cpu")),
        pytest.raises(ValueError, match="share memory"),
    ):
        dist.broadcast(torch.zeros(1).expand(3), (rank + 1) % size)
    assert_group_works()
    assert untouched.tolist() == [-1.0] * 3, "no call of a failed batch has started"


def assert_group_works() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    data = torch.full((2,), float(rank))
    dist.all_reduce(data)
    assert data.tolist() == [float(sum(range(size)))] * 2
    dist.broadcast(data.fill_(rank), 2)
    assert data.tolist() == [2.0, 2.0]
    received = torch.zeros(1)
    operations = [
        dist.P2POp(dist.irecv, received, (rank + 1) % size),
        dist.P2POp(dist.isend, torch.tensor([float(rank)]), (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received.item() == (rank + 1) % size


def test_group_works_after_failed_batch(ranks: RankProcesses) -> None:
    ranks.run(failing_batches)


def two_threads() -> None:
    """One thread exchanges batches of messages while the other calls collectives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    failures: list[BaseException] = []

    def exchange(tag: int) -> None:
        try:
            for step in range(100):
                received = torch.full((20,), -1.0)
                operations = [
                    dist.P2POp(dist.irecv, received, (rank + 1) % size, tag=tag),
                    dist.P2POp(dist.isend, torch.full((20,), 100.0 * step + rank), (rank - 1) % size, tag=tag),
                ]
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
                assert received.eq(100.0 * step + (rank + 1) % size).all(), received
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        data = torch.full((3,), float(rank))
        dist.all_reduce(data)
        assert data.tolist() == [float(sum(range(size)))] * 3
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_batches_in_several_threads(ranks: RankProcesses) -> None:
    ranks.run(two_threads)
