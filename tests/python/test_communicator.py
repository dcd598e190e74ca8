"""Life cycle, queries, errors and explain of communicators."""

from __future__ import annotations

import copy
import pickle
import threading
import time

import numpy as np
import pytest
from conftest import TIMEOUT_S, run_on_all_ranks

import isthmus
from isthmus import Communicator, Device, Error, Platform, Status, UniqueId


def test_version_and_queries(ranks) -> None:
    assert isthmus.__version__.count(".") == 2
    for index, comm in enumerate(ranks):
        assert (comm.rank, comm.size, comm.local_size) == (index, len(ranks), len(ranks))
        assert comm.device == Device(Platform.host, 0)
        assert f"rank {index} of {len(ranks)}" in repr(comm)


def test_from_unique_id_in_threads() -> None:
    unique_id = UniqueId.create()
    sums: dict[int, list[float]] = {}

    def run_rank(rank: int) -> None:
        with Communicator.from_unique_id(unique_id, rank, 3, timeout=TIMEOUT_S) as comm:
            sums[rank] = comm.allreduce(np.array([rank + 1.0])).tolist()

    threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    assert sums == {0: [6.0], 1: [6.0], 2: [6.0]}


def test_unique_id_converts_to_hex_and_hides_secret() -> None:
    unique_id = UniqueId.create()
    assert UniqueId.fromhex(unique_id.hex()) == unique_id
    assert len(unique_id) == 128
    assert unique_id.hex()[:16] not in repr(unique_id) + str(unique_id)
    with pytest.raises(ValueError, match="the size of id must be 128 bytes"):
        Communicator.from_unique_id(b"short", 0, 1)


def test_missing_rank_times_out_at_creation() -> None:
    started = time.monotonic()
    with pytest.raises(Error) as error_info:
        Communicator.from_unique_id(UniqueId.create(), 0, 2, timeout=0.5)
    assert error_info.value.code == Status.timeout
    assert time.monotonic() - started < 10


def test_split_by_color_and_key(ranks) -> None:
    children = run_on_all_ranks(ranks, lambda comm: comm.split(comm.rank % 2, key=-comm.rank))
    for parent_rank, child in enumerate(children):
        members = [rank for rank in range(len(ranks)) if rank % 2 == parent_rank % 2][::-1]
        assert (child.rank, child.size) == (members.index(parent_rank), len(members))
    sums = run_on_all_ranks(children, lambda child: int(child.allreduce(np.array([1], np.int32))[0]))
    assert sums == [child.size for child in children]


def test_split_without_color_returns_none(pair) -> None:
    children = run_on_all_ranks(pair, lambda comm: comm.split(0 if comm.rank == 0 else None))
    assert children[0].size == 1
    assert children[1] is None
    with pytest.raises(ValueError, match="color must be >= 0 or None, not -3"):
        pair[0].split(-3)


def test_split_in_a_group(pair) -> None:
    with isthmus.group():
        children = [comm.split(0, key=1 - comm.rank) for comm in pair]
    assert [child.rank for child in children] == [1, 0]


def test_closed_communicator_raises_error(pair) -> None:
    pair[0].close()
    pair[0].close()  # closing twice is allowed
    assert repr(pair[0]) == "<isthmus.Communicator closed>"
    with pytest.raises(ValueError, match="the communicator is closed"):
        pair[0].allreduce(np.zeros(1))


def test_core_errors_carry_every_field(pair) -> None:
    with pytest.raises(Error) as error_info:
        pair[1].broadcast(np.zeros(1), root=5)
    failure = error_info.value
    assert failure.code == Status.invalid_argument
    assert failure.collective == "broadcast"
    assert failure.rank == 1
    assert failure.native_code == 0
    assert failure.ranks == ()
    assert ".cpp:" in failure.location
    assert "root" in failure.message
    assert "5" in failure.message
    assert failure.message in str(failure)


def test_errors_can_be_pickled(pair) -> None:
    with pytest.raises(Error) as error_info:
        pair[0].send(np.zeros(1), 9)
    error_info.value.ranks = (2, 5)
    error_info.value.__notes__ = ["in step 7"]  # set by add_note() since Python 3.11
    restored = pickle.loads(pickle.dumps(error_info.value))
    assert vars(restored) == vars(error_info.value)
    assert str(copy.copy(error_info.value)) == str(error_info.value)


def test_abort_wakes_waiting_rank(pair) -> None:
    def run_rank(comm: Communicator) -> Status | None:
        if comm.rank == 1:
            time.sleep(0.2)
            comm.abort()
            return None
        with pytest.raises(Error) as error_info:
            comm.allreduce(np.zeros(4))
        return error_info.value.code

    started = time.monotonic()
    code = run_on_all_ranks(pair, run_rank)[0]
    assert code in (Status.aborted, Status.remote)
    assert time.monotonic() - started < TIMEOUT_S / 2
    with pytest.raises(Error):
        pair[0].check()


def test_missing_partner_times_out_in_collective() -> None:
    pair = Communicator.create_all(2, timeout=0.5)
    with pytest.raises(Error) as error_info:
        pair[0].allreduce(np.zeros(4))
    assert error_info.value.code == Status.timeout
    assert error_info.value.ranks == (1,)
    with pytest.raises(Error) as later_error:  # same thread, without failed ranks
        Communicator.create_all(0)
    assert (later_error.value.ranks, error_info.value.ranks) == ((), (1,))
    for comm in pair:
        comm.close()


def test_invalid_operation_cancels_its_group(pair) -> None:
    out = [np.full(2, 7.0) for _ in pair]
    with pytest.raises(Error), isthmus.group():
        pair[0].allreduce(np.ones(2), out[0])
        pair[1].broadcast(np.ones(2), out[1], root=4)
    assert [child.tolist() for child in out] == [[7.0, 7.0]] * 2
    assert run_on_all_ranks(pair, lambda comm: comm.allreduce(np.ones(1)).tolist()) == [[2.0]] * 2


def test_exception_in_group_starts_no_operation(pair) -> None:
    out = np.full(2, 7.0)
    with pytest.raises(RuntimeError, match="on purpose"), isthmus.group():
        pair[0].allreduce(np.ones(2), out)
        raise RuntimeError("on purpose")
    assert out.tolist() == [7.0, 7.0]
    assert run_on_all_ranks(pair, lambda comm: comm.allreduce(np.ones(1)).tolist()) == [[2.0]] * 2


def test_invalid_devices_and_sizes_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"platform 'gpu' is unknown; allowed: host, cuda"):
        Communicator.create_all(["gpu"])
    with pytest.raises(ValueError, match=r"the part after ':' must be an ordinal"):
        Communicator.create_all(["cuda:x"])
    with pytest.raises(Error) as error_info:
        Communicator.create_all(0)
    assert error_info.value.code == Status.invalid_argument


def test_bad_configuration_error_names_file_and_line(tmp_path) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text('[[rule]]\ncollective = "alreduce"\nuse = "shm"\n')
    with pytest.raises(Error, match=r"isthmus\.toml:2:.*alreduce") as error_info:
        Communicator.create_all(1, config=str(file))
    assert error_info.value.code == Status.config


def test_info_lists_backends_and_rules(pair) -> None:
    document = pair[0].info()
    assert document["size"] == 2
    assert document["rules"]
    assert {"name", "state", "reason"} <= document["backends"][0].keys()
    assert all((backend["state"] == "available") == (not backend["reason"]) for backend in document["backends"])


def test_explain_lists_selected_and_rejected_rules(pair, monkeypatch) -> None:
    document = pair[0].explain("allreduce", count=1000, dtype="float32")
    assert document["backend"]
    assert document["query"]["bytes"] == 4000
    assert document["rejected"]
    with pytest.raises(ValueError, match="collective 'alreduce' is unknown; allowed: broadcast"):
        pair[0].explain("alreduce")


def test_explain_supports_every_collective(pair) -> None:
    for name in isthmus.COLLECTIVES:
        document = pair[1].explain(name, count=5, dtype="int16")
        assert document["query"]["collective"] == name
        assert document["backend"], document["reason"]


def test_explain_follows_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_RULE", "collective=allreduce bytes=0..1K use=nosuch; collective=reduce use=shm")
    with pytest.raises(Error, match="nosuch"):
        Communicator.create_all(1)
    monkeypatch.setenv("ISTHMUS_RULE", "collective=allreduce bytes=0..1K use=shm")
    with Communicator.create_all(1)[0] as comm:
        assert "environment ISTHMUS_RULE" in comm.explain("allreduce", count=1)["source"]
        assert "environment" not in comm.explain("allreduce", count=1000)["source"]
