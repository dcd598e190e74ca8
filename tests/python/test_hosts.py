"""scripts/hosts_check: the ucx backend between network namespaces that simulate hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/python"))

from hosts.jobs import BUILD  # noqa: E402
from hosts.network import obstacle  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _require_network_namespaces() -> None:
    if reason := obstacle():
        pytest.skip(reason)
    libraries = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    if "libucp.so.0" not in libraries:
        pytest.skip("libucp.so.0 is not installed; run apt-get install libucx0")
    if not (BUILD / "bin/conformance_mpi").exists():
        pytest.skip("this build has no MPI")


def hosts_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/hosts_check"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
def test_conformance_passes_across_isolated_hosts() -> None:
    completed = hosts_check("conformance", "--thinning", "96", "--samples", "4")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count(" 0 failed") == 9, completed.stdout


@pytest.mark.timeout(600)
def test_unreachable_host_is_an_error_on_every_rank() -> None:
    completed = hosts_check("unreachable")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count("unreachable: rank ") == 4 + 4 + 8, completed.stdout
