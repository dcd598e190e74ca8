"""Installations that readers of the documentation use. Each is made once per run, for all test processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from installation import (
    BUILD,
    build_environment,
    build_wheel,
    make_once,
    run_command,
    variables_without_checkout,
)

# As the MPI tests of CTest (tests/CMakeLists.txt): ranks that poll sleep instead of yielding their core.
SLEEPING_YIELD = BUILD / "lib" / "libsleeping_yield.so"
if SLEEPING_YIELD.is_file():
    os.environ.setdefault("LD_PRELOAD", str(SLEEPING_YIELD))


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `cmake --install`."""

    def install(folder: Path) -> None:
        run_command("cmake", "--install", BUILD, "--prefix", folder)

    return make_once(tmp_path_factory, "prefix", install)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of `pip install .`, built with the installed build tools."""
    return next(make_once(tmp_path_factory, "wheel", build_wheel).glob("isthmus-*.whl"))


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with only the wheel and the packages that it requires."""
    return make_once(tmp_path_factory, "environment", lambda folder: build_environment(folder, wheel))


@pytest.fixture(scope="session")
def python(environment: Path) -> Path:
    """The interpreter of the environment with the wheel."""
    return environment / "bin" / "python"


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder of readers, with their caches."""
    return make_once(tmp_path_factory, "home", lambda _: None)


@pytest.fixture(scope="session")
def first_torch_import(python: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The messages of the first import of isthmus.torch, which compiles its extension."""

    def import_torch(folder: Path) -> None:
        command = [python, "-c", "import isthmus.torch"]
        variables = variables_without_checkout(HOME=str(home))
        completed = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        (folder / "messages").write_text(completed.stdout + completed.stderr)

    return (make_once(tmp_path_factory, "torch", import_torch) / "messages").read_text()
