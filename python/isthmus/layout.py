"""Where things lie: the checkout and build folder that this package came from, and its environment."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType


class MissingError(RuntimeError):
    """Something that a command needs is not there; the message says how to get it."""


@cache
def _build() -> tuple[Path, Path] | None:
    """(checkout, build folder) of a package in a build tree; None when it was installed by pip."""
    try:
        from . import _build as generated
    except ImportError:
        return None
    return Path(generated.CHECKOUT), Path(generated.BUILD)


def checkout() -> Path | None:
    """The source tree, or None for an installed package."""
    paths = _build()
    return paths[0] if paths else None


def build_folder() -> Path | None:
    """The CMake build folder, or None for an installed package."""
    paths = _build()
    return paths[1] if paths else None


def environment_folder() -> Path:
    """The (virtual) environment that this Python runs in."""
    return Path(sys.prefix)


def library_folder() -> Path:
    """Where libisthmus.so is."""
    build = build_folder()
    return build / "lib" if build else Path(__file__).parent


def preload(variable: str, path: Path) -> None:
    """Loads a library of this Python's environment, which the core then finds by its name. Does nothing where
    the variable names another, or the file is not there."""
    if variable in os.environ or not path.is_file():
        return
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return  # the core looks itself, and says what it tried


def import_bench_module(name: str) -> ModuleType:
    """A module of bench/python, which the installed package does not carry. Raises MissingError."""
    root = checkout()
    if root is None:
        raise MissingError(f"{name} is not part of the installed package; run this from a checkout")
    folder = str(root / "bench" / "python")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(name)


def get_include() -> Path:
    """The folder of Isthmus' C and C++ headers, for compilers' -I."""
    root = checkout()
    return root / "include" if root else Path(__file__).parent / "include"


def get_cmake_dir() -> Path:
    """What an installed package's CMake files want: cmake -Disthmus_ROOT=$(python -m isthmus.layout cmake).

    Raises MissingError in a build tree, whose own `cmake --install` makes one.
    """
    if build_folder() is not None:
        raise MissingError("a build tree has no CMake package: cmake --install build --prefix FOLDER makes one")
    return Path(__file__).parent / "cmake"


def program(name: str) -> Path:
    """A built program by name. Raises MissingError."""
    build = build_folder()
    if build is None:
        raise MissingError(
            f"{name} is not part of the installed package; run this from a checkout, after make build"
        )
    path = build / "bin" / name
    if not path.is_file():
        raise MissingError(f"{path} is not built; run make build")
    return path


if __name__ == "__main__":
    queries = {"include": get_include, "cmake": get_cmake_dir, "lib": library_folder}
    if len(sys.argv) != 2 or sys.argv[1] not in queries:
        sys.exit(f"usage: python -m isthmus.layout {'|'.join(queries)}")
    print(queries[sys.argv[1]]())
