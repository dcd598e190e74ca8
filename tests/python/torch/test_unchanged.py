"""Unchanged scripts (the folder unchanged): Isthmus in the place of gloo, to the losses of gloo beside it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import QUIET, RankProcesses

import isthmus.torch
from isthmus.torch import __main__ as launched
from isthmus.torch import _replace

SCRIPTS = Path(__file__).parent / "unchanged"
RANKS = 2
# Of the script over gloo, while its process lives. When they go, DDP's reducer takes gloo's group along,
# whose end (PyTorch 2.13) joins threads with Python's lock held; one of them may want that lock, to let go of a
# tensor of the last call. Seen with accelerate, one run in six, whose last call is only just over then.
_globals: dict[str, Any] = {}


def plain(script: str, folder: str) -> list[isthmus.torch.Row]:
    """The script as `python SCRIPT` runs it."""
    sys.path.insert(0, str(SCRIPTS))
    sys.argv = [script, folder]
    global _globals
    _globals = runpy.run_path(script, run_name="__main__")
    return isthmus.torch.report()


def replaced(script: str, folder: str) -> list[isthmus.torch.Row]:
    """The script as `python -m isthmus.torch SCRIPT` runs it."""
    launched.main([script, folder])
    return isthmus.torch.report()


class Runner:
    """Runs work on two fresh ranks that meet as torchrun's do: env:// and the launcher's own store."""

    def __init__(self, make: Callable[..., RankProcesses]) -> None:
        self._make = make
        self._stores: list[dist.TCPStore] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any, **environment: str) -> list[Any]:
        self._stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        meeting = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._stores[-1].port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        return self._make(RANKS, **meeting, **environment).run(work, *arguments, backend=None)


@pytest.fixture
def runs() -> Any:
    started: list[RankProcesses] = []

    def make(*arguments: Any, **environment: str) -> RankProcesses:
        started.append(RankProcesses(*arguments, **environment))
        return started[-1]

    yield Runner(make)
    for ranks in started:
        ranks.close()


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def both(runs: Runner, name: str, folder: Path) -> tuple[list[dict[str, Any]], list[list[isthmus.torch.Row]]]:
    """Runs the script over gloo and over Isthmus, checks that losses agree and fall, and that gloo ran gloo."""
    script = str(SCRIPTS / f"{name}.py")
    ours, reference = folder / "isthmus", folder / "gloo"
    ours.mkdir(), reference.mkdir()
    assert runs(plain, script, str(reference)) == [[]] * RANKS, "the baseline must not take Isthmus' paths"
    rows = runs(replaced, script, str(ours))
    mine, gloo = results(ours), results(reference)
    for rank in range(RANKS):
        assert mine[rank].pop("losses") == pytest.approx(losses := gloo[rank].pop("losses"), rel=2e-5)
        assert losses[-1] < losses[0]
        assert (
            mine[rank] == pytest.approx(gloo[rank], rel=2e-5)
            if name == "accelerated"
            else mine[rank] == gloo[rank]
        )
    return mine, rows


def check(rows: list[list[isthmus.torch.Row]], expected: set[str]) -> None:
    for of_rank in rows:
        own = [row for row in of_rank if not row.is_torch_fallback]
        assert {row.collective for row in own} >= expected
        assert all(row.path.startswith("host") and row.seconds > 0 for row in own), own


def test_ddp_and_every_way_to_name_a_group(runs: Runner, tmp_path: Path) -> None:
    mine, rows = both(runs, "ddp", tmp_path)
    check(rows, {"allreduce", "broadcast"})
    assert mine[0]["names"] == ["gloo", "cpu:gloo", "cpu:gloo,cuda:gloo", "gloo"], "as without Isthmus"
    for rank, of_rank in enumerate(rows):
        other = [(row.collective, row.path, row.seconds) for row in of_rank if row.is_torch_fallback]
        assert other == [("allreduce", "torch:gloo", None)], "a bitwise reduction"
        reduced = {row.group for row in of_rank if row.collective == "allreduce" and not row.is_torch_fallback}
        assert len(reduced) == 5 + rank, "one mesh has the default group, one group is rank 1's own"


def test_fsdp2(runs: Runner, tmp_path: Path) -> None:
    check(both(runs, "fsdp2", tmp_path)[1], {"allgather", "reduce_scatter"})


def test_deepspeed(runs: Runner, tmp_path: Path) -> None:
    check(both(runs, "zero", tmp_path)[1], {"allgather"})


def test_accelerate(runs: Runner, tmp_path: Path) -> None:
    check(both(runs, "accelerated", tmp_path)[1], {"allreduce", "allgather"})


def splits() -> tuple[list[float], list[str], bool]:
    """NCCL's way to make groups, which PyTorch offers for no other backend."""
    isthmus.torch.replace_backends()
    dist.init_process_group("gloo")
    whole = dist.split_group(split_ranks=[[1, 0]])
    alone = dist.split_group(whole, [[0], [1]], group_desc="alone")
    none = dist.split_group(whole, [[1]])
    data = [torch.full((3,), dist.get_rank() + 1.0) for _ in range(2)]
    dist.all_reduce(data[0], group=whole)
    dist.all_reduce(data[1], group=alone)
    names = [dist.get_backend(whole), alone.group_desc]
    dist.destroy_process_group()
    return [each[0].item() for each in data], names, none is None


def test_split_group(runs: Runner) -> None:
    assert runs(splits) == [
        ([3.0, 1.0], ["gloo", "alone"], True),
        ([3.0, 2.0], ["gloo", "alone"], False),
    ]


def test_spawned_processes_take_isthmus_and_print_the_report(tmp_path: Path) -> None:
    script = [SCRIPTS / "spawning.py", tmp_path]
    command = [sys.executable, "-m", "isthmus.torch", "--report", *script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | QUIET
    )
    assert done.returncode == 3, done.stderr  # the script's own
    said = done.stderr
    assert said.count("isthmus: 1 of 2 calls of this rank took Isthmus' paths") == 1, said
    lines = {tuple(line.split()[:4]) for line in said.splitlines()}
    assert {("cpu", "allreduce", "shm:packet", "1"), ("cpu", "allreduce", "torch:gloo", "1")} <= lines, said
    assert "allreduce by torch:gloo: Isthmus has no bitwise reductions" in said


@pytest.mark.parametrize("backend", ["mpi", "ucc", "cpu:mpi,cuda:nccl"])
def test_other_backends_are_left_alone_with_a_line(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_replace, "_logged", set())
    for _ in range(2):
        assert (_replace.replacement_map(backend) or {}).get("cpu") in (None, "mpi")
    name = backend.removeprefix("cpu:").partition(",")[0]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and repr(name) in said[0] and "only gloo and nccl are" in said[0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("nccl", {"cuda": "isthmus"}),
        ("NCCL", {"cuda": "isthmus"}),
        ("cpu:gloo,cuda:nccl", {"cpu": "isthmus", "cuda": "isthmus"}),
        ("cuda:nccl", {"cuda": "isthmus"}),
        ("cpu:isthmus,cuda:isthmus", None),
        ("isthmus", None),
        ("fake", None),
    ],
)
def test_device_by_device(
    asked: str, expected: dict[str, str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _replace.replacement_map(asked) == expected
    assert not capsys.readouterr().err


def test_gloo_keeps_the_cuda_tensors_of_a_gloo_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert _replace.replacement_map("gloo") == {"cpu": "isthmus", "cuda": "gloo"}
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert _replace.replacement_map("gloo") == {"cpu": "isthmus"}


def test_a_script_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        launched.main(["nowhere.py"])
    assert "SCRIPT 'nowhere.py' does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "seen"),
    [(["--local_rank=1"], ["--local_rank=1", "--x", "-m"]), ([], ["--x", "-m"]), (["--report"], ["--x", "-m"])],
)
def test_the_script_gets_its_arguments(
    given: list[str],
    seen: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, sys.argv, sys.path[0])\n")
    (tmp_path / "also.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    asked = []
    monkeypatch.setattr(launched, "replace_backends", lambda report: asked.append(report))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", [])
    launched.main([*given, str(script), "--x", "-m"])
    assert capsys.readouterr().out == f"__main__ {[str(script), *seen]} {tmp_path}\n"
    launched.main([*given, "-m", "also", "--x", "-m"])
    assert capsys.readouterr().out == f"__main__ {seen}\n"
    assert asked == ["--report" in given] * 2
