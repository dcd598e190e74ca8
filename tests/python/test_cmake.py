"""The CMake build of a user: default targets, requirements and FetchContent. The core is not compiled here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from installation import BUILD, fmt_check

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "install" / "project"
DEVELOPMENT = {"tests", "benchmarks, applications, examples", "Python module"}


def configure(source: Path, build: Path, *options: str) -> subprocess.CompletedProcess:
    # Nothing of the checkout's virtual environment, which a user does not have.
    command = ["cmake", "-S", source, "-B", build, "-G", "Unix Makefiles", "-DISTHMUS_VENV=/nowhere", *options]
    command += [f"-D{name}={value}" for name, value in fmt_check().items()]
    variables = {name: value for name, value in os.environ.items() if name != "CMPLR_ROOT"}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=variables)


def summary(output: str) -> dict[str, tuple[str, str]]:
    """Returns the state of each part and the reason from the end of the configuration."""
    lines = re.findall(r"^--   (\S.*?) +(on|off)(?: {3}(.*))?$", output, re.MULTILINE)
    return {part: (state, reason) for part, state, reason in lines}


@pytest.fixture(scope="module")
def default_build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("default")
    completed = configure(ROOT, folder, "-DISTHMUS_P2P=OFF")
    assert completed.returncode == 0, completed.stderr
    return folder, completed.stdout


def test_default_build_contains_library_only(default_build: tuple[Path, str]) -> None:
    folder, _ = default_build
    command = ["cmake", "--build", folder, "--target", "help"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kinds = "test|bench|demo|oracle|python|example"
    targets = set(re.findall(rf"^\.\.\. (isthmus\w*|\w*(?:{kinds})\w*)$", listed, re.MULTILINE))
    plugins = {f"isthmus_{name}" for name in ("plugin_support", "nccl", "rccl")}
    preloads = {f"isthmus_{name}" for name in ("ggml", "mpi_preload", "nccl_preload", "nccl_engine")}
    system = {"isthmus_mpi_openmpi"}  # if Open MPI is installed
    assert targets - system == {
        "isthmus", "isthmus_core", "isthmus_fmt", "isthmus_setup", "isthmus_with_plugins", *plugins, *preloads,
    }  # fmt: skip


def test_summary_gives_the_reason_for_absent_parts(default_build: tuple[Path, str]) -> None:
    parts = summary(default_build[1])
    assert parts["library"][0] == "on"
    assert parts.keys() > DEVELOPMENT
    assert {parts[name][0] for name in DEVELOPMENT} == {"off"}
    assert "ISTHMUS_SYCL_FOLDER" in parts["oneccl plug-in, other SYCL parts"][1]
    assert parts["p2p plug-in (CUDA kernels)"] == ("off", "ISTHMUS_P2P=OFF")
    assert not [part for part, (state, reason) in parts.items() if state == "off" and not reason]


def test_everything_missing_is_named_at_once(tmp_path: Path) -> None:
    hidden = "/usr/include;/usr/local/include;/usr/lib;/usr/lib/x86_64-linux-gnu;/usr/local/lib"
    options = [f"-DCMAKE_IGNORE_PATH={hidden}", "-DISTHMUS_NVCC=OFF", "-DPython_EXECUTABLE=/bin/false"]
    options += [f"-DISTHMUS_{part}=ON" for part in ("P2P", "PYTHON", "TESTS")]
    completed = configure(ROOT, tmp_path, *options)
    assert completed.returncode != 0
    message = " ".join(completed.stderr.split())
    packages = [
        "libtomlplusplus-dev",
        "libspdlog-dev",
        "libfmt-dev",
        "nlohmann-json3-dev",
        "libze-dev",
        "libsodium-dev",
    ]
    assert f"apt-get install {' '.join([*packages, 'python3-dev', 'libcli11-dev'])}" in message
    assert "nanobind (from PyPI" in message
    assert "nvcc of CUDA 12 or newer" in message
    assert message.count("CMake Error") == 1


def test_unusable_nvcc_turns_p2p_off(tmp_path: Path) -> None:
    nvcc = ["-DISTHMUS_NVCC=/bin/false", "-DISTHMUS_DEV=ON", "-DISTHMUS_TESTS=OFF", "-DISTHMUS_APPS=OFF"]
    automatic = configure(ROOT, tmp_path, "-DISTHMUS_PYTHON=OFF", *nvcc)
    assert automatic.returncode == 0, automatic.stderr
    state, reason = summary(automatic.stdout)["p2p plug-in (CUDA kernels)"]
    assert state == "off"
    assert "an nvcc that works with this g++ and CMake" in reason
    required = configure(ROOT, tmp_path, "-DISTHMUS_P2P=ON")
    assert required.returncode != 0
    assert "an nvcc that works with this g++ and CMake" in " ".join(required.stderr.split())


def test_vanished_nvcc_is_replaced(tmp_path: Path) -> None:
    """pip builds again in the same folder with an nvcc in another temporary folder."""
    options = ["-DISTHMUS_PYTHON=OFF", "-DISTHMUS_P2P=ON"]
    found = re.search(r"^ISTHMUS_NVCC:FILEPATH=(/.+)$", (BUILD / "CMakeCache.txt").read_text(), re.M)
    if found is None:
        pytest.skip("no nvcc")
    temporary = tmp_path / "nvcc"
    temporary.write_text(f'#!/bin/sh\nexec {found[1]} "$@"\n')
    temporary.chmod(0o755)
    again = configure(ROOT, tmp_path / "again", f"-DISTHMUS_NVCC={temporary}", *options)
    assert again.returncode == 0, again.stderr
    temporary.unlink()
    again = configure(ROOT, tmp_path / "again", *options)
    assert again.returncode == 0, again.stderr
    assert summary(again.stdout)["p2p plug-in (CUDA kernels)"][0] == "on"


def test_fetch_content_provides_the_installed_targets(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.22)
project(parent C CXX)
include(FetchContent)
FetchContent_Declare(isthmus SOURCE_DIR {ROOT})
FetchContent_MakeAvailable(isthmus)
add_executable(use_core {SOURCES}/use_core.c)
target_link_libraries(use_core PRIVATE isthmus::isthmus)
add_library(nothing MODULE {SOURCES}/nothing_plugin.c)
target_link_libraries(nothing PRIVATE isthmus::plugin)
foreach(name sycl mpi)
  get_target_property(type isthmus::${{name}} TYPE)
endforeach()
""")
    completed = configure(tmp_path, tmp_path / "b", "-DISTHMUS_P2P=OFF")
    assert completed.returncode == 0, completed.stderr
    assert {summary(completed.stdout)[name][0] for name in DEVELOPMENT} == {"off"}
    # A plug-in needs only the headers. A program also needs the core, which takes too long to compile here.
    subprocess.run(["cmake", "--build", tmp_path / "b", "--target", "nothing"], check=True, capture_output=True)
    order = (tmp_path / "b" / "CMakeFiles" / "Makefile2").read_text()
    core = "_deps/isthmus-build/src/CMakeFiles/isthmus.dir/all"
    assert re.search(rf"^CMakeFiles/use_core.dir/all: {core}", order, re.MULTILINE)
    install_script = (tmp_path / "b" / "_deps" / "isthmus-build" / "cmake_install.cmake").read_text()
    assert "isthmus.pc" not in install_script
