"""Makes the installations that readers of the documentation use: a prefix, and an environment with a wheel."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / os.environ.get("BUILD", "build")
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
# The extras whose packages scripts/setup installs.
EXTRAS = ("mpi", "sycl-cpu", "torch", "lowprecision", "report")
# Packages that pages ask their readers to install.
PAGE_PACKAGES = ("scipy-openblas32", "cmake", "ninja")


def variables_without_checkout(**variables: str) -> dict[str, str]:
    """The environment variables of a command that must not import the package of the checkout."""
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **variables}


def run_command(*command: str | Path, **variables: str) -> str:
    words = [str(word) for word in command]
    completed = subprocess.run(
        words, capture_output=True, text=True, check=False, env=variables_without_checkout(**variables)
    )
    assert completed.returncode == 0, f"{command}\n{completed.stdout}\n{completed.stderr}"
    return completed.stdout


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder that one of the processes of this run has filled with `make`."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder.with_suffix(".lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder.with_suffix(".complete")
        if not complete.exists():
            make(folder)
            complete.touch()
    return folder


def compilers() -> dict[str, str]:
    """Returns the compilers of the build tree, so that the compiler cache can be used."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    names = {"C": "CC", "CXX": "CXX"}
    return {names[name]: re.search(rf"^CMAKE_{name}_COMPILER:\w+=(.+)$", cache, re.M)[1] for name in names}


def fmt_check() -> dict[str, str]:
    """The result of a check of the compiler and fmt that takes 4 CPU seconds, as a variable of CMake."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    result = re.search(r"^ISTHMUS_COMPILES_FMT_ONCE:\w+=(\w+)$", cache, re.M)[1]
    return {"ISTHMUS_COMPILES_FMT_ONCE": result}


def has_compiler_cache() -> bool:
    return shutil.which("ccache") is not None and "CCACHE_DISABLE" not in os.environ


def build_wheel(folder: Path) -> None:
    # Exclude the p2p kernels, whose compilation takes one more minute. The build tree contains them.
    values = {"build-dir": f"{BUILD}-wheel", "cmake.define.ISTHMUS_P2P": "OFF"}
    values |= {f"cmake.define.{name}": value for name, value in fmt_check().items()}
    if not has_compiler_cache():  # otherwise the flags of the build tree, whose compilations the cache holds
        values["cmake.define.CMAKE_CXX_FLAGS_RELEASE"] = "-O0 -DNDEBUG"
    roots = f"{sys.prefix};{sys.prefix}/sycl-8"  # as in scripts/wheel
    values["cmake.define.ISTHMUS_SYCL_ROOTS"] = roots
    # pip 23.0, the version of Debian 12, does not know the short form -C.
    settings = [f"--config-settings={name}={value}" for name, value in values.items()]
    options = ["--no-deps", "--no-build-isolation", "-w", folder, *settings]
    run_command(*PIP, "wheel", *options, ROOT, **compilers())


def required_distributions(wheel_distribution: Distribution) -> Iterator[Distribution]:
    """Yields the installed packages that the wheel requires, directly or indirectly, with EXTRAS."""
    pending, seen = [(wheel_distribution, EXTRAS)], set(PAGE_PACKAGES)
    yield from map(distribution, PAGE_PACKAGES)
    while pending:
        package, extras = pending.pop()
        for requirement in map(Requirement, package.requires or []):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            if requirement.name in seen:
                continue
            seen.add(requirement.name)
            try:
                found = distribution(requirement.name)
            except PackageNotFoundError:
                continue  # of an extra that scripts/setup has not installed
            yield found
            pending.append((found, tuple(requirement.extras)))


def link_files(package: Distribution, environment: Path) -> None:
    """Installs a package as links to the files and folders of this environment, which takes no time."""
    prefix = Path(sys.prefix)
    for file in package.files or []:
        source = Path(os.path.normpath(package.locate_file(file)))
        if not source.is_file() or not source.is_relative_to(prefix):
            continue
        parts = source.relative_to(prefix).parts
        name = Path(
            *parts[: 4 if "site-packages" in parts else 2]
        )  # lib/pythonX/site-packages/NAME or bin/NAME
        source, target = prefix / name, environment / name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        own_python = f"#!{prefix}/bin/python".encode()
        if source.parent.name == "bin" and source.read_bytes().startswith(own_python):
            program = source.read_bytes().partition(b"\n")[2]
            target.write_bytes(f"#!{environment}/bin/python\n".encode() + program)
            target.chmod(0o755)
        else:
            target.symlink_to(source)


def build_environment(folder: Path, wheel: Path) -> None:
    """Creates a virtual environment with only the wheel and the packages that it requires."""
    venv.create(folder, with_pip=False)
    run_command(*PIP, "--python", folder / "bin" / "python", "install", "--no-deps", wheel)
    (installed,) = folder.glob("lib/python*/site-packages/isthmus-*.dist-info")
    for package in required_distributions(Distribution.at(installed)):
        link_files(package, folder)
