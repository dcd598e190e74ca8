"""`deterministic`: a sum has the same bits for every size, slice, algorithm and process layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import same_bits
from conftest import TIMEOUT_S, run_on_all_ranks
from test_cli import in_checkout, run_json

import isthmus


def algorithms(backend: str) -> list[str]:
    with isthmus.Communicator.create_all(1)[0] as communicator:
        (row,) = [each for each in communicator.info()["backends"] if each["name"] == backend]
    assert "rank_order" in row["capabilities"]
    return [f"{backend}:{name}" for name in row["algorithms"]]


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_DETERMINISTIC", "1")
    monkeypatch.setenv("ISTHMUS_OPTION", same_bits.OPTIONS)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_slices_have_equal_bits_on_all_algorithms(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = same_bits.Reference(ranks)
    checked = {}
    for backend in [None, *algorithms("shm"), *(algorithms("ucx") if ranks == 3 else [])]:
        if backend is not None:
            monkeypatch.setenv("ISTHMUS_BACKEND", backend)
        communicators = isthmus.Communicator.create_all(ranks, timeout=TIMEOUT_S)
        (checked[backend],) = set(
            run_on_all_ranks(communicators, lambda each: same_bits.check_rank(each, reference))
        )
        for communicator in communicators:
            communicator.close()
        monkeypatch.delenv("ISTHMUS_BACKEND", raising=False)
    assert checked[None] == max(checked.values())
    unchecked = {name for name, count in checked.items() if count == 0}
    assert unchecked <= {"shm:channel", "shm:divided", "ucx:chain"}, "no reductions"


def test_other_orders_give_other_bits() -> None:
    reference = same_bits.Reference(3)
    for dtype, (first, second, third) in reference.contributions.items():
        other = same_bits.reduce_in_order([first, third, second], "sum")
        assert other.tobytes() != reference.results[dtype, "sum"].tobytes()


def check_processes(layout: str, backends: list[str], folder: Path) -> None:
    job = subprocess.run(
        [sys.executable, same_bits.__file__, folder, layout, *backends],
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    checked = [line.split() for line in job.stdout.splitlines()]
    assert [name for name, _ in checked] == backends
    assert all(int(count) > 0 for _, count in checked), job.stdout


@pytest.mark.parametrize("layout", ["1,1,1", "2,1", "3,2"])
def test_slices_have_equal_bits_in_all_layouts(layout: str, tmp_path: Path) -> None:
    # Every second one uses the symmetric heap.
    backends = ["shm:packet", "shm:zero_copy", "shm:zero_copy", "shm:zero_copy_streamed"]
    check_processes(layout, [*backends, "shm:two_shot_adaptive", "shm:one_shot", "ucx:two_shot"], tmp_path)


# Without `deterministic`, the rules select `hierarchical` for the longest slices.
def test_slices_have_equal_bits_on_several_nodes(tmp_path: Path) -> None:
    check_processes("1/1,1", ["rules"], tmp_path)


@in_checkout
def test_nodes_with_mpi_use_a_backend_in_rank_order() -> None:
    """MPI is available on these ranks, but adds in an unknown order."""
    reply = run_json("explain", "allreduce", "--bytes", "1M", "-n", "4", "--nodes", "2", "--mpi", "--json")
    assert reply["backend"] == "ucx" and reply["reduction"]["is_guaranteed"]


def test_invalid_deterministic_setting_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_DETERMINISTIC", "perhaps")
    with pytest.raises(isthmus.Error, match=r'environment ISTHMUS_DETERMINISTIC: .*"perhaps"'):
        isthmus.Communicator.create_all(1)
