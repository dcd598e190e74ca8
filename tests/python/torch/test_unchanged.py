"""Unmodified scripts (the folder unchanged) reach the same losses with Isthmus as with gloo."""

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
from rank_processes import BACKEND, QUIET, RankProcesses

import isthmus.torch
from isthmus.torch import __main__ as launcher
from isthmus.torch import _replace
from isthmus.torch._compile import torch_version

SCRIPTS = Path(__file__).parent / "unchanged"
RANKS = 2
# Globals of the script that ran with gloo, kept until the process exits. Releasing them would destroy DDP's
# reducer and gloo's group, whose destructor (PyTorch 2.13) joins threads while it holds the GIL. One of these
# threads may need the GIL to release a tensor of the last call. Observed with accelerate in one of six runs.
_globals: dict[str, Any] = {}


def run_plain(script: str, folder: str) -> list[isthmus.torch.Row]:
    """Runs the script like `python SCRIPT`."""
    sys.path.insert(0, str(SCRIPTS))
    sys.argv = [script, folder]
    global _globals
    _globals = runpy.run_path(script, run_name="__main__")
    return isthmus.torch.report()


def run_replaced(script: str, folder: str) -> list[isthmus.torch.Row]:
    """Runs the script like `python -m isthmus.torch SCRIPT`."""
    launcher.main([script, folder])
    return isthmus.torch.report()


class Runner:
    """Runs work on two new ranks that initialize like those of torchrun: env:// and the launcher's store."""

    def __init__(self, make: Callable[..., RankProcesses]) -> None:
        self._make = make
        self._stores: list[dist.TCPStore] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any, **environment: str) -> list[Any]:
        self._stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        rendezvous_variables = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._stores[-1].port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        return self._make(RANKS, **rendezvous_variables, **environment).run(work, *arguments, backend=None)


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
    """Runs the script with gloo and with Isthmus and checks that the losses agree and decrease."""
    script = str(SCRIPTS / f"{name}.py")
    isthmus_folder, reference = folder / "isthmus", folder / "gloo"
    isthmus_folder.mkdir(), reference.mkdir()
    assert runs(run_plain, script, str(reference)) == [[]] * RANKS, "the baseline must not use Isthmus"
    rows = runs(run_replaced, script, str(isthmus_folder))
    isthmus_losses, gloo = results(isthmus_folder), results(reference)
    for rank in range(RANKS):
        assert isthmus_losses[rank].pop("losses") == pytest.approx(losses := gloo[rank].pop("losses"), rel=2e-5)
        assert losses[-1] < losses[0]
        assert (
            isthmus_losses[rank] == pytest.approx(gloo[rank], rel=2e-5)
            if name == "accelerated"
            else isthmus_losses[rank] == gloo[rank]
        )
    return isthmus_losses, rows


def check(rows: list[list[isthmus.torch.Row]], expected: set[str]) -> None:
    for of_rank in rows:
        own = [row for row in of_rank if not row.is_torch_fallback]
        assert {row.collective for row in own} >= expected
        assert all(row.path.startswith("shm") and row.seconds > 0 for row in own), own


def test_ddp_with_all_kinds_of_groups(runs: Runner, tmp_path: Path) -> None:
    isthmus_losses, rows = both(runs, "ddp", tmp_path)
    check(rows, {"allreduce", "broadcast"})
    assert isthmus_losses[0]["names"] == ["gloo", "cpu:gloo", "cpu:gloo,cuda:gloo", "gloo"], (
        "as without Isthmus"
    )
    for rank, of_rank in enumerate(rows):
        other = [(row.collective, row.path, row.seconds) for row in of_rank if row.is_torch_fallback]
        assert other == [("allreduce", "torch:gloo", None)], "a bitwise reduction"
        reduced = {row.group for row in of_rank if row.collective == "allreduce" and not row.is_torch_fallback}
        assert len(reduced) == 5 + rank, "one mesh uses the default group, and one group has only rank 1"


@pytest.mark.skipif(torch_version() < (2, 7), reason="FSDP2 of PyTorch 2.6 fails on the CPU, also with gloo")
def test_fsdp2(runs: Runner, tmp_path: Path) -> None:
    check(both(runs, "fsdp2", tmp_path)[1], {"allgather", "reduce_scatter"})


def test_deepspeed(runs: Runner, tmp_path: Path) -> None:
    check(both(runs, "zero", tmp_path)[1], {"allgather"})


def test_accelerate(runs: Runner, tmp_path: Path) -> None:
    check(both(runs, "accelerated", tmp_path)[1], {"allreduce", "allgather"})


def split_groups(backend: str) -> tuple[list[float], list[str], bool]:
    """Uses split_group, which PyTorch supports only for its own backends."""
    if backend == "gloo":
        isthmus.torch.replace_backends()
    dist.init_process_group(backend)
    whole = dist.split_group(split_ranks=[[1, 0]])
    single_group = dist.split_group(whole, [[0], [1]], group_desc="alone")
    none = dist.split_group(whole, [[1]])
    data = [torch.full((3,), dist.get_rank() + 1.0) for _ in range(2)]
    dist.all_reduce(data[0], group=whole)
    dist.all_reduce(data[1], group=single_group)
    names = [dist.get_backend(whole), single_group.group_desc]
    dist.destroy_process_group()
    return [each[0].item() for each in data], names, none is None


@pytest.mark.parametrize("backend", ["gloo", BACKEND])
def test_split_group(runs: Runner, backend: str) -> None:
    # Since PyTorch 2.14, the new ranks have the order of the list.
    outside = [False, True] if torch_version() >= (2, 14) else [True, False]
    assert runs(split_groups, backend) == [
        ([3.0, 1.0], [backend, "alone"], outside[0]),
        ([3.0, 2.0], [backend, "alone"], outside[1]),
    ]


def test_spawned_processes_use_isthmus_and_report(tmp_path: Path) -> None:
    script = [SCRIPTS / "spawning.py", tmp_path]
    command = [sys.executable, "-m", "isthmus.torch", "--report", *script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | QUIET
    )
    assert done.returncode == 3, done.stderr  # the exit code of the script
    output = done.stderr
    assert output.count("isthmus: 1 of 2 calls of this rank ran on Isthmus") == 1, output
    lines = {tuple(line.split()[:4]) for line in output.splitlines()}
    assert {("cpu", "allreduce", "shm:packet", "1"), ("cpu", "allreduce", "torch:gloo", "1")} <= lines, output
    assert "allreduce by torch:gloo: Isthmus has no bitwise reductions" in output


def run_with_report(program: str) -> str:
    command = [sys.executable, "-m", "isthmus.torch", "--report", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=True, env=os.environ | QUIET
    )
    return done.stderr


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("", "this process created none"),
        ("fake", "no group requested gloo or nccl"),
        ("own", "the backend 'own' is not replaced; only gloo and nccl are"),
        ("cpu:gloo,cuda:own", "groups with own (cpu:gloo,cuda:own) are not changed"),
    ],
)
def test_report_states_that_nothing_was_replaced(backend: str, reason: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "import torch.testing._internal.distributed.fake_pg\n"  # registers "fake"
        "from torch._C._distributed_c10d import FakeProcessGroup\n"
        "def own(store, rank, size, timeout):\n"
        "    return getattr(FakeProcessGroup, '_create_internal', FakeProcessGroup)(rank, size)\n"
        "dist.Backend.register_backend('own', own, devices=['cpu', 'cuda'])\n"
        f"if {backend!r}:\n"
        f"    dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)\n"
    )
    output = run_with_report(str(script))
    assert output.count("isthmus: 0 of 0 calls of this rank ran on Isthmus") == 1, output
    assert f"isthmus: no process group was replaced: {reason}" in output


@pytest.mark.parametrize("backend", ["mpi", "ucc", "cpu:mpi,cuda:nccl"])
def test_other_backends_are_not_replaced(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_replace, "_logged", {})
    for _ in range(2):
        assert (_replace.replacement_map(backend) or {}).get("cpu") in (None, "mpi")
    name = backend.removeprefix("cpu:").partition(",")[0]
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 1 and repr(name) in output[0] and "only gloo and nccl are" in output[0]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("nccl", {"cuda": "isthmus"}),
        ("cpu:gloo,cuda:nccl2", {"cpu": "isthmus", "cuda": "isthmus"}),
        ("NCCL", {"cuda": "isthmus"}),
        ("cpu:gloo,cuda:nccl", {"cpu": "isthmus", "cuda": "isthmus"}),
        ("cuda:nccl", {"cuda": "isthmus"}),
        ("cpu:isthmus,cuda:isthmus", None),
        ("isthmus", None),
        ("fake", None),
    ],
)
def test_replacement_by_device(
    requested: str, expected: dict[str, str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _replace.replacement_map(requested) == expected
    assert not capsys.readouterr().err


def test_gloo_keeps_cuda_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert _replace.replacement_map("gloo") == {"cpu": "isthmus", "cuda": "gloo"}
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert _replace.replacement_map("gloo") == {"cpu": "isthmus"}


def test_missing_script_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        launcher.main(["nowhere.py"])
    assert "SCRIPT 'nowhere.py' does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "script_arguments"),
    [(["--local_rank=1"], ["--local_rank=1", "--x", "-m"]), ([], ["--x", "-m"]), (["--report"], ["--x", "-m"])],
)
def test_script_receives_its_arguments(
    arguments: list[str],
    script_arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, sys.argv, sys.path[0])\n")
    (tmp_path / "also.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    requested = []
    monkeypatch.setattr(launcher, "replace_backends", lambda report: requested.append(report))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", [])
    launcher.main([*arguments, str(script), "--x", "-m"])
    assert capsys.readouterr().out == f"__main__ {[str(script), *script_arguments]} {tmp_path}\n"
    launcher.main([*arguments, "-m", "also", "--x", "-m"])
    assert capsys.readouterr().out == f"__main__ {script_arguments}\n"
    assert requested == ["--report" in arguments] * 2
