"""Starts jobs on the hosts: by an MPI launcher, or as one process per rank."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .network import Hosts

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("BUILD", ROOT / "build")).resolve()


def library_path() -> str:
    return str(BUILD / "python")


def host_of(rank: int, ranks: int, hosts: Hosts) -> int:
    """The host of a rank; ranks of a host are consecutive."""
    return rank * hosts.count // ranks


def write_starter(hosts: Hosts, ranks: int, folder: Path) -> Path:
    """Writes a program that the launcher runs for each rank: it enters the host and executes the command."""
    lines = ["#!/bin/sh", "case $PMI_RANK in"]
    for rank in range(ranks):
        lines.append(f'{rank}) exec {" ".join(hosts.enter_command(host_of(rank, ranks, hosts)))} "$@" ;;')
    starter = folder / "start"
    starter.write_text("\n".join([*lines, "esac", ""]))
    starter.chmod(starter.stat().st_mode | stat.S_IXUSR)
    return starter


def mpi_environment(hosts: Hosts, ranks: int) -> dict[str, str]:
    """Variables that define for MPICH which ranks share a host, because its launcher sees only one machine."""
    if hosts.count == ranks:
        return {"MPIR_CVAR_NOLOCAL": "1"}
    return {"MPIR_CVAR_NUM_CLIQUES": str(hosts.count), "MPIR_CVAR_CLIQUES_BY_BLOCK": "1"}


def run_mpi(
    hosts: Hosts, ranks: int, folder: Path, command: list[str], timeout_s: float, **variables: str
) -> subprocess.CompletedProcess[str]:
    launcher = [str(ROOT / ".venv/bin/mpiexec"), "-n", str(ranks), str(write_starter(hosts, ranks, folder))]
    environment = os.environ | mpi_environment(hosts, ranks) | variables
    return subprocess.run(
        [*launcher, *command], env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


OPENMPI = ROOT / ".peers/openmpi"  # installed by scripts/setup_peers


def run_openmpi(
    hosts: Hosts, ranks: int, folder: Path, command: list[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs a job with the daemons of Open MPI on named hosts, so that it knows which ranks share one."""
    names = [f"host{host}" for host in range(hosts.count)]
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{hosts.address(host)} {name}\n" for host, name in enumerate(names))
    )
    lines = ["#!/bin/sh", "name=$1; shift", "case $name in"]
    for host, name in enumerate(names):
        renamed_command = f'unshare --uts sh -c \'hostname {name}; exec sh -c "$1"\' sh "$*"'
        lines.append(f"{name}) exec {' '.join(hosts.enter_command(host))} {renamed_command} ;;")
    agent = folder / "agent"  # used instead of ssh
    agent.write_text("\n".join([*lines, "esac", ""]))
    agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
    host_list = ",".join(f"{name}:{ranks // hosts.count}" for name in names)
    launcher = [str(OPENMPI / "bin/mpirun"), "--allow-run-as-root", "--host", host_list, "--bind-to", "none"]
    launcher += ["--map-by", ":OVERSUBSCRIBE", "--prtemca", "plm_ssh_agent", str(agent)]
    launcher += ["--prtemca", "prte_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0"]
    launcher += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"]
    set_up = f'mount --bind {folder}/hosts /etc/hosts; hostname {names[0]}; exec "$@"'
    return subprocess.run(
        [*hosts.enter_command(0), "unshare", "--uts", "--mount", "sh", "-c", set_up, "sh", *launcher, *command],
        env=os.environ
        | {"OPAL_PREFIX": str(OPENMPI), "PRTE_PREFIX": str(OPENMPI), "PMIX_PREFIX": str(OPENMPI)}
        | {"LD_LIBRARY_PATH": str(OPENMPI / "lib")},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start_ranks(
    hosts: Hosts, ranks: int, command: Callable[[int], list[str]], **variables: str
) -> list[subprocess.Popen[str]]:
    """Starts one Python process per rank on its host, with the package of the build."""
    environment = os.environ | {"PYTHONPATH": library_path()} | variables
    return [
        subprocess.Popen(
            [*hosts.enter_command(host_of(rank, ranks, hosts)), sys.executable, *command(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
