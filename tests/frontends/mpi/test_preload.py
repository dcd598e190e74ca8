"""libisthmus_mpi_preload.so with unmodified MPI programs, started as users start them.

The MPICH ABI and the MPI 5 ABI use the MPICH of the environment. Open MPI is tested if scripts/setup_peers
has installed it.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from isthmus import launch, layout
from isthmus.layout import MissingError

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Family:
    name: str  # name of the engine
    compiler: Path
    mpi: str  # value of --mpi that starts it
    variables: dict[str, str]


def families() -> list[Family]:
    bin_folder = layout.environment_folder() / "bin"
    families_found = [
        Family("mpich", bin_folder / "mpicc", "mpich", {}),
        Family("abi", bin_folder / "mpicc_abi", "mpich", {}),
    ]
    openmpi = launch.peer_folder("openmpi")
    if (openmpi / "launch").is_file():
        families_found.append(
            Family("openmpi", openmpi / "bin" / "mpicc", "openmpi", {"OPAL_PREFIX": str(openmpi)})
        )
    built = layout.library_folder()
    return [each for each in families_found if (built / f"libisthmus_mpi_{each.name}.so").is_file()]


@pytest.fixture(scope="module", params=families(), ids=lambda family: family.name)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Family]:
    """Compiles program.c for one family."""
    family: Family = request.param
    built = tmp_path_factory.mktemp(family.name) / "program"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-lpthread", "-ldl"]
    command = [str(family.compiler), str(HERE / "program.c"), "-o", str(built), *flags]
    subprocess.run(command, env=os.environ | family.variables, check=True, timeout=120)
    return built, family


def start(
    built: tuple[Path, Family], ranks: int, *mode: str, shim: bool = True, bind: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    program_path, family = built
    options = [*(["--mpi-shim", "--report"] if shim else []), *([] if bind else ["--no-bind"])]
    command = [sys.executable, "-m", "isthmus", "run", "-n", str(ranks), "--mpi", family.mpi, *options]
    environment = os.environ | {"ISTHMUS_MPI_ATTACH_MS": "0"} | variables
    return subprocess.run(
        [*command, str(program_path), *mode],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def handled_calls(output: str) -> dict[str, int]:
    """Returns the number of calls per MPI function that Isthmus handled, from the report."""
    calls: dict[str, int] = {}
    for name, count in re.findall(r"^ +(MPI_\w+) +shm\S* +(\d+)", output, re.MULTILINE):
        calls[name] = calls.get(name, 0) + int(count)
    return calls


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_program_with_own_operators(family: Family, tmp_path: Path) -> None:
    """Neither library may free what the program's operator new has allocated, or the other way round."""
    built = tmp_path / "program"
    compiler = family.compiler.with_name(family.compiler.name.replace("mpicc", "mpicxx"))
    flags = ["-std=c++20", "-O1", "-Wall", "-Werror", "-rdynamic", "-DMPICH_SKIP_MPICXX", "-DOMPI_SKIP_MPICXX"]
    command = [str(compiler), str(HERE / "own_operators.cpp"), "-o", str(built), *flags]
    subprocess.run(command, env=os.environ | family.variables, check=True, timeout=120)
    result = start((built, family), 2)
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert handled_calls(result.stderr)


def test_missing_engine_is_explained(
    program: tuple[Path, Family], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program runs without Isthmus, and both messages say what is missing and how to get it."""
    library = layout.library_folder() / "libisthmus_mpi_preload.so"
    preload = shutil.copy(library, tmp_path)
    family = program[1]
    result = start(program, 2, "collectives", shim=False, LD_PRELOAD=str(preload))
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    package = "libopenmpi-dev" if family.name == "openmpi" else "ISTHMUS_VENV"
    for part in (f"libisthmus_mpi_{family.name}.so", "release wheel", package, "all calls go to MPI"):
        assert part in result.stderr
    monkeypatch.setattr(layout, "library_folder", lambda: tmp_path)
    with pytest.raises(MissingError, match="install a release wheel, which has all engines, or run "):
        launch.shim_variables(family.name, report=False)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective(program: tuple[Path, Family], ranks: int) -> None:
    result = start(program, ranks, "collectives")
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    calls = handled_calls(result.stderr)
    for name in [
        "Barrier",
        "Bcast",
        "Reduce",
        "Allreduce",
        "Reduce_scatter",
        "Reduce_scatter_block",
        "Allgather",
        "Allgatherv",
        "Gather",
        "Gatherv",
        "Scatter",
        "Scatterv",
        "Alltoall",
        "Alltoallv",
    ]:
        assert calls.get(f"MPI_{name}", 0) > 0, result.stderr
    assert "passed to MPI" not in result.stderr


def test_passed_calls_have_reasons(program: tuple[Path, Family]) -> None:
    result = start(program, 3, "mixed")
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    passed = dict(re.findall(r"passed to MPI +\d+  (.*?)()$", result.stderr, re.MULTILINE))
    assert "no data" in passed and "intercommunicator" in passed
    assert any("datatype not supported" in reason for reason in passed), "MPI_2INT"
    assert any("other than sum" in reason for reason in passed), "an operation of the program"


def test_report_of_a_program_without_collectives(program: tuple[Path, Family]) -> None:
    result = start(program, 2, "idle")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr.count("the program has called no collective that Isthmus intercepts") == 1, (
        result.stderr
    )


@pytest.mark.parametrize("mode", ["progress", "threads", "forks"])
def test_program_behaves_as_without_preload(program: tuple[Path, Family], mode: str) -> None:
    result = start(program, 2, mode)
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert handled_calls(result.stderr)


def test_more_than_2_gib(program: tuple[Path, Family]) -> None:
    """Runs with one family only, because it moves gigabytes and sizes do not depend on the family."""
    if program[1].name != "mpich":
        pytest.skip("runs with MPICH only")
    result = start(program, 2, "large")
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert len(re.findall(r"MPI_(?:Bcast|Allreduce) +shm\S* +1 +2147495936 ", result.stderr)) == 2, (
        result.stderr
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its user id")
def test_rank_that_changes_its_user(program: tuple[Path, Family]) -> None:
    """The kernel refuses copies to and from this rank, so its data go through shared memory."""
    result = start(program, 2, "user", ISTHMUS_RULE="use=shm:zero_copy")
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert handled_calls(result.stderr)


def test_short_lived_communicators_leave_no_memory(program: tuple[Path, Family]) -> None:
    result = start(program, 2, "cycles")
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert handled_calls(result.stderr)["MPI_Allreduce"] >= 600


@pytest.mark.parametrize("mode", ["aborts", "killed"])
def test_launcher_reports_exit_of_a_rank(program: tuple[Path, Family], mode: str) -> None:
    preloaded, plain = start(program, 2, mode), start(program, 2, mode, shim=False)
    assert preloaded.returncode == plain.returncode != 0, preloaded.stderr + plain.stderr


def test_errors_match_mpi(program: tuple[Path, Family]) -> None:
    """An MPI built without argument checks crashes for invalid arguments, with and without Isthmus."""
    preloaded, plain = start(program, 2, "errors"), start(program, 2, "errors", shim=False)
    assert (preloaded.returncode == 0) == (plain.returncode == 0), preloaded.stderr + plain.stderr
    if plain.returncode == 0:
        assert preloaded.stdout == plain.stdout == "0 wrong\n"


def test_freed_communicator_is_reported(program: tuple[Path, Family]) -> None:
    """Runs with MPICH only. Handles of Open MPI are pointers, which are dangling after the free."""
    if program[1].name != "mpich":
        pytest.skip("only MPICH detects freed handles")
    plain = start(program, 2, "freed", shim=False)
    assert plain.returncode == 0 and plain.stdout == "0 wrong\n", plain.stdout + plain.stderr
    preloaded = start(program, 2, "freed")
    assert preloaded.returncode == 0 and preloaded.stdout == plain.stdout, preloaded.stdout + preloaded.stderr


def test_short_calls_go_to_mpi(program: tuple[Path, Family]) -> None:
    result = start(program, 2, "forks", ISTHMUS_MPI_ATTACH_MS="1e6")
    assert result.returncode == 0 and not handled_calls(result.stderr)
    assert "communicator not attached yet" in result.stderr


def test_long_calls_attach(program: tuple[Path, Family]) -> None:
    """Rank 1 enters each of the first 24 calls, which are barriers, 2 ms late.

    Rank 0 counts 0.25 ms for each of 11 calls before call 16. In calls 1, 2, 4 and 8, it waits while the ranks
    compare their times, which does not count. The sum must reach 2 ms, 1 ms for each rank.
    """
    result = start(program, 2, "late", ISTHMUS_MPI_ATTACH_MS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert handled_calls(result.stderr) and "communicator not attached yet" in result.stderr


def test_limits_may_differ(program: tuple[Path, Family]) -> None:
    script = (
        f'ISTHMUS_MPI_ATTACH_MS=$((${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} * 2)) exec "{program[0]}" collectives'
    )
    result = start((Path("sh"), program[1]), 2, "-c", script)
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr


@pytest.mark.parametrize("preloaded", [0, 1])
def test_rank_without_the_library(program: tuple[Path, Family], preloaded: int) -> None:
    """The library finds out that another rank does not run it, so all calls go to MPI."""
    program_path, family = program
    library = layout.library_folder() / "libisthmus_mpi_preload.so"
    shim = ["env", f"LD_PRELOAD={library}", "ISTHMUS_MPI_ATTACH_MS=0", "ISTHMUS_MPI_REPORT=1"]
    ranks = [[*(shim if rank == preloaded else []), str(program_path), "collectives"] for rank in range(2)]
    launcher = launch.launcher(family.mpi)
    command = [*launcher.command(1, bind=False), *ranks[0], ":", "-n", "1", *ranks[1]]
    result = subprocess.run(
        command, env=launch.environment(launcher), capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert not handled_calls(result.stderr)
    if preloaded == 0:
        assert "not every rank of this node runs this library" in result.stderr


def test_preload_by_hand(program: tuple[Path, Family]) -> None:
    """Without isthmus run, the library finds out that all ranks of this node run it."""
    program_path, family = program
    library = layout.library_folder() / "libisthmus_mpi_preload.so"
    shim = ["env", f"LD_PRELOAD={library}", "ISTHMUS_MPI_ATTACH_MS=0", "ISTHMUS_MPI_REPORT=1"]
    launcher = launch.launcher(family.mpi)
    result = subprocess.run(
        [*launcher.command(2, bind=False), *shim, str(program_path), "collectives"],
        env=launch.environment(launcher), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert handled_calls(result.stderr), result.stderr


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_spawned_processes(family: Family, tmp_path: Path) -> None:
    """Processes of two worlds use MPI, and those of one world use Isthmus. Spawned processes are preloaded."""
    built = tmp_path / "spawner"
    command = [str(family.compiler), str(HERE / "spawner.c"), "-o", str(built), "-Wall", "-Wextra", "-Werror"]
    subprocess.run(command, env=os.environ | family.variables, check=True, timeout=120)
    # The launchers cannot spawn processes if they bind ranks. That of Open MPI binds unless cores are scarce.
    ranks = 2 if family.name != "openmpi" else len(os.sched_getaffinity(0)) + 1
    if ranks > 8 or start((built, family), ranks, shim=False, bind=False).returncode != 0:
        pytest.skip("this MPI cannot spawn processes here")
    result = start((built, family), ranks, bind=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip() == f"0 wrong, {ranks + 2} preloaded", result.stdout + result.stderr
    assert len(re.findall("processes outside of MPI_COMM_WORLD", result.stderr)) == 2, result.stderr
    assert len(re.findall(r"MPI_Allreduce +shm\S* +40 ", result.stderr)) == 2, result.stderr


def run_on_two_nodes(
    built: tuple[Path, Family], mode: str, rules: Path | None
) -> subprocess.CompletedProcess[str]:
    """Runs four ranks on two simulated nodes."""
    program_path, family = built
    rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
    script = f'export ISTHMUS_NODE=$(({rank} / 2)); exec "{program_path}" {mode}'
    options = ["-n", "4", "--mpi", family.mpi, "--mpi-shim", "--report"]
    command = [sys.executable, "-m", "isthmus", "run", *options, "sh", "-c", script]
    variables = {"ISTHMUS_MPI_ATTACH_MS": "0", "ISTHMUS_CONFIG": str(rules) if rules else "none"}
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False
    )


def test_nodes_without_rule_go_to_mpi(program: tuple[Path, Family]) -> None:
    result = run_on_two_nodes(program, "collectives", None)
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    assert "ranks cannot access each other's memory" in result.stderr and not handled_calls(result.stderr)


@pytest.mark.skipif(ctypes.util.find_library("ucp") is None, reason="UCX is required between nodes")
@pytest.mark.parametrize("mode", ["collectives", "progress"])
def test_rule_selects_hierarchical_for_nodes(program: tuple[Path, Family], mode: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'default_backend = "ucx"\n[[rule]]\ncollective = ["allreduce", "broadcast", "allgather"]\n'
        'nodes = "2.."\nuse = "hierarchical"\n[backend.hierarchical]\nchunk_bytes = 4096\n'
    )
    result = run_on_two_nodes(program, mode, rules)
    assert result.returncode == 0 and result.stdout.strip() == "0 wrong", result.stdout + result.stderr
    if mode == "collectives":
        assert re.search(r"MPI_Allreduce +hierarchical +[1-9]", result.stderr), result.stderr
        assert "no rule selects an Isthmus backend between nodes" in result.stderr
        assert not re.search(r"MPI_Reduce +hierarchical", result.stderr), result.stderr


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_engine_uses_only_standard_mpi(family: Family) -> None:
    """An engine must work with other versions of its family than the one that it was compiled with."""
    engine = layout.library_folder() / f"libisthmus_mpi_{family.name}.so"
    output = subprocess.run(
        ["nm", "-D", "--undefined-only", engine], capture_output=True, text=True, check=True
    )
    assert "PMPI_Barrier" in output.stdout
    assert re.findall(r" U (MPIX_\w+)", output.stdout) == []


def test_program_without_mpi_is_unaffected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    command = [sys.executable, "-m", "isthmus", "run", "--mpi-shim", "env"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    preloaded = next(line for line in result.stdout.splitlines() if line.startswith("LD_PRELOAD="))
    assert preloaded.endswith("/libisthmus_mpi_preload.so") and result.stderr == ""


def test_unknown_mpi_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "ldd"
    fake.write_text("#!/bin/sh\necho '\tlibmpi.so.7 => /usr/lib/libmpi.so.7 (0x0)'\n")
    fake.chmod(0o755)
    with pytest.raises(
        MissingError, match=r"libmpi\.so\.7, which is not a supported MPI; supported: .*Open MPI"
    ):
        launch.linked_mpi_family("program", os.environ | {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("version", "family"),
    [
        ("mpiexec (OpenRTE) 4.1.4", "openmpi"),
        ("mpiexec (Open MPI) 5.0.8", "openmpi"),
        ("HYDRA build details:", "mpich"),
        ("Another MPI", None),
    ],
)
def test_system_launcher_family(
    version: str, family: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(f"#!/bin/sh\necho '{version}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch.launcher_family("system") == family


def test_launcher_of_another_mpi_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, output in (
        ("mpiexec", "mpiexec (OpenRTE) 4.1.4"),
        ("ldd", "libmpi.so.12 => /usr/lib/libmpi.so.12"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{output}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = [sys.executable, "-m", "isthmus", "run", "--mpi", "system", "--mpi-shim", "-n", "2", "/bin/true"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "which --mpi system cannot start; use --mpi mpich" in " ".join(result.stderr.split())


MPI4PY = """
from mpi4py import MPI
import numpy
comm = MPI.COMM_WORLD
data = numpy.full(1000, comm.rank, dtype="d")
total = numpy.empty_like(data)
comm.Allreduce(data, total, op=MPI.SUM)
assert (total == comm.size * (comm.size - 1) / 2).all()
assert comm.allgather({"rank": comm.rank}) == [{"rank": rank} for rank in range(comm.size)]
assert comm.bcast([1, 2, 3] if comm.rank == 0 else None) == [1, 2, 3]
"""


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_mpi4py(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mpi4py looks up functions with large counts, which only the preloaded library and not Open MPI has."""
    pytest.importorskip("mpi4py")
    if family.name == "abi":
        pytest.skip("mpi4py supports one ABI of MPICH")
    if family.name == "openmpi":
        monkeypatch.setenv("MPI4PY_MPIABI", "openmpi")
        monkeypatch.setenv("MPI4PY_LIBMPI", str(launch.peer_folder("openmpi") / "lib" / "libmpi.so.40"))
    script = tmp_path / "script.py"
    script.write_text(MPI4PY)
    options = ["-n", "2", "--mpi", family.mpi, "--mpi-shim", "--report"]
    command = [sys.executable, "-m", "isthmus", "run", *options, sys.executable, str(script)]
    environment = os.environ | {"ISTHMUS_MPI_ATTACH_MS": "0"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert handled_calls(result.stderr).get("MPI_Allreduce", 0) >= 1, result.stderr
