"""isthmus doctor: all checks, and their reports of deliberate failures."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import run_cli

from isthmus import launch, layout
from isthmus.cli import checks, doctor, gpus
from isthmus.cli.checks import CHECKS, CheckError, extension_error, pytorch
from isthmus.cli.doctor import Result, run_check

ALWAYS_AVAILABLE = {"package", "configuration", "shared memory", "ranks", "backends"}


def assert_failed(result: Result, details: str, hint: str) -> None:
    assert result.result == "failed", result
    assert re.search(details, result.details), result
    assert re.search(hint, result.hint), result


def prepend_python_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes child processes import from that folder first."""
    previous = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([previous] if previous else [])]))


def test_every_available_check_passes(tmp_path: Path) -> None:
    completed = run_cli("doctor", "--json", ISTHMUS_DOCTOR_SHM=str(tmp_path))
    document = json.loads(completed.stdout)
    assert completed.returncode == 0 and document["healthy"], document
    results = {each["check"]: each for each in document["checks"]}
    assert list(results) == list(CHECKS)
    expected = ALWAYS_AVAILABLE | ({"mpi"} if Path(launch.launcher("mpich").executable).is_file() else set())
    assert expected <= {name for name, each in results.items() if each["result"] == "ok"}
    assert re.search("two processes, allreduce by shm:", results["ranks"]["details"])
    assert re.search(r"two processes, allreduce by mpi", results["mpi"]["details"])
    for each in results.values():
        assert each["seconds"] > 0 and each["details"] and not each["hint"]


def test_failed_check_prints_hint_and_exits_with_1(tmp_path: Path) -> None:
    completed = run_cli("doctor", "--only", "shared memory", "--only", "package", ISTHMUS_DOCTOR_SHM="/proc")
    assert completed.returncode == 1, completed.stderr
    assert re.search(r"^package +ok ", completed.stdout, re.M)
    assert re.search(r"^shared memory +failed .*0 of 0 MiB free", completed.stdout, re.M)
    assert "--shm-size" in completed.stdout
    assert run_cli("doctor", "--only", "nonsense").returncode == 2


def test_missing_shared_memory_folder_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_DOCTOR_SHM", "/nowhere")
    assert_failed(run_check("shared memory"), "/nowhere does not exist", "mount a tmpfs")


@pytest.fixture
def limited_file_size() -> Iterator[None]:
    """Limits files, and therefore segments, of new processes to 1 MiB."""
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, previous[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, previous)


@pytest.mark.usefixtures("limited_file_size")
def test_file_size_limit_fails_shared_memory_check() -> None:
    assert_failed(
        run_check("shared memory"), "cannot create a shared memory segment of 32 MiB: File too large", "ulimit"
    )


@pytest.mark.parametrize(
    ("name", "value", "details", "hint"),
    [
        ("ISTHMUS_CONFIG", "/nowhere.toml", "cannot read /nowhere.toml", "correct the path or unset it"),
        ("ISTHMUS_RULE", "use=nonsense", 'unknown backend "nonsense"', "remove this setting"),
    ],
)
def test_invalid_setting_fails_configuration_check(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, details: str, hint: str
) -> None:
    monkeypatch.setenv(name, value)
    assert_failed(run_check("configuration"), details, hint)
    assert run_check("backends").result == "ok", "only the configuration check reads the user's settings"


def test_invalid_configuration_file_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "isthmus.toml"
    file.write_text('threshold = "many"\n')
    monkeypatch.setenv("ISTHMUS_CONFIG", str(file))
    assert_failed(run_check("configuration"), r"isthmus.toml:1:\d+: size", "see docs/.*.md")


def test_broken_plugin_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libisthmus_broken.so").write_text("no library")
    monkeypatch.setenv("ISTHMUS_PLUGIN_PATH", str(tmp_path))
    assert_failed(
        run_check("plug-ins"),
        "libisthmus_broken.so: file too short",
        "remove the file from ISTHMUS_PLUGIN_PATH",
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize(
    ("body", "timeout", "details", "hint"),
    [("pause()", 5, "did not finish within 5 s", "--timeout 20"), ("abort()", 60, "SIGABRT", "isthmus info")],
)
def test_hanging_or_crashing_check_is_isolated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, timeout: float, details: str, hint: str
) -> None:
    source = (
        f"#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) void start() {{ {body}; }}\n"
    )
    plugin = str(tmp_path / "libisthmus_wild.so")
    compiler = ["g++", "-x", "c", "-shared", "-fPIC", "-o", plugin, "-"]
    subprocess.run(compiler, input=source, text=True, check=True)
    monkeypatch.setenv("ISTHMUS_PLUGIN_PATH", str(tmp_path))
    result = run_check("plug-ins", timeout)
    assert_failed(result, details, hint)


def test_gpu_check_reports_only_unavailable_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends that no rule names are not missing."""
    states = {"nccl": "available", "rccl": "other_platform", "ucx": "not_used", "p2p": "unavailable"}
    entries = [{"name": name, "state": state, "reason": f"r-{name}"} for name, state in states.items()]
    communicator = SimpleNamespace(info=lambda: {"backends": entries}, close=lambda: None)
    monkeypatch.setattr(gpus.Communicator, "create_all", lambda *_arguments, **_options: [communicator])
    monkeypatch.setattr(gpus, "devices", lambda: (["cuda:0"], ""))
    monkeypatch.setattr(gpus, "fused_status", lambda _device: {})
    monkeypatch.setattr(checks, "_check_devices", lambda _devices, usable: f"usable {usable}")
    assert checks.gpus() == "cuda:0; p2p: r-p2p; usable ['nccl']"
    assert gpus.describe(1.0)["backends"].keys() == {"nccl", "ucx", "p2p"}
    entries[0]["state"] = "unavailable"
    with pytest.raises(CheckError, match="nccl: r-nccl; p2p: r-p2p"):
        checks.gpus()


def test_missing_gpus_are_named_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reason = {"providers": [{"name": "direct", "available": False, "reason": "HIP: hipErrorInvalidDevice"}]}
    monkeypatch.setattr(gpus.memory, "explain", lambda _: reason)
    monkeypatch.setattr(gpus, "_AMD_DRIVER", tmp_path / "kfd")
    assert gpus.devices()[1].endswith(f"; hip: no AMD GPU driver ({tmp_path / 'kfd'} does not exist)")
    (tmp_path / "kfd").touch()
    assert gpus.devices()[1].endswith("; hip: HIP: hipErrorInvalidDevice")


def test_sycl_of_installed_package_is_not_tested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(layout, "build_folder", lambda: None)
    monkeypatch.setattr(layout, "environment_folder", lambda: tmp_path)
    result = checks.run_check(checks.sycl)
    assert result["result"] == "unavailable", result
    assert "run pip install 'isthmus[sycl-cpu]'" in result["details"], result
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libsycl.so").touch()
    result = checks.run_check(checks.sycl)
    assert result["result"] == "not_tested", result
    assert f"compile a program with the headers in {layout.get_include()}" in result["details"], result


def test_missing_pytorch_is_not_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    prepend_python_path(monkeypatch, tmp_path)
    result = run_check("pytorch")
    assert result.result == "unavailable", result
    assert "PyTorch (package torch" in result.details and "run scripts/setup torch" in result.details, result


def test_broken_pytorch_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch_cpu.so is gone')")
    prepend_python_path(monkeypatch, tmp_path)
    assert_failed(run_check("pytorch"), "libtorch_cpu.so is gone", "pip install torch")


@pytest.mark.parametrize(
    ("checkout", "hint"), [(None, "^run .* -c 'import isthmus.torch'"), (Path("/src"), "scripts/setup torch")]
)
def test_compiler_output_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, checkout: Path | None, hint: str
) -> None:
    monkeypatch.setattr(layout, "checkout", lambda: checkout)
    error = extension_error(ImportError("install g++ 12 or newer. Output of the compiler:\nc++ -MMD\nfailed"))
    assert str(error) == "install g++ 12 or newer."
    assert re.search(hint, error.hint), error.hint


def test_pytorch_has_longer_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def record_limit(_check: str, _environment: dict[str, str], timeout: float) -> dict[str, str]:
        limits.append(timeout)
        return {"result": "ok", "details": "", "hint": ""}

    monkeypatch.setattr(doctor, "run_isolated", record_limit)
    run_check("ranks")
    run_check("pytorch")
    run_check("pytorch", 5)
    assert limits == [60, 300, 5]


def test_pytorch_without_replacement_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import isthmus.torch

    monkeypatch.setattr(isthmus.torch, "replace_backends", lambda: None)
    with pytest.raises(CheckError, match="a process group with 'gloo' did not use Isthmus"):
        pytorch()


@pytest.mark.skipif(layout.checkout() is None, reason="an installed package contains no peer MPI")
def test_mpi_launch_failure_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_LAUNCHER", "nonsense")
    assert_failed(run_check("mpi"), "two ranks under .* exited with", "hostname")
