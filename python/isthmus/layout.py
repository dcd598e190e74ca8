"""Paths of the package: checkout, build folder, libraries, headers and Python environment."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType


class MissingError(RuntimeError):
    """A file or package that a command requires is missing. The message says how to install it."""


@cache
def _build() -> tuple[Path, Path] | None:
    """Returns (checkout, build folder) of a package in a build tree, or None for an installed package."""
    try:
        from . import _build as generated
    except ImportError:
        return None
    return Path(generated.CHECKOUT), Path(generated.BUILD)


def checkout() -> Path | None:
    """Returns the source tree, or None for an installed package."""
    paths = _build()
    return paths[0] if paths else None


def build_folder() -> Path | None:
    """Returns the CMake build folder, or None for an installed package."""
    paths = _build()
    return paths[1] if paths else None


def environment_folder() -> Path:
    """Returns the folder whose bin/ and lib/ hold the files of installed packages.

    It is the (virtual) environment that this Python runs in. For Debian's own Python, it is another folder.
    """
    return Path(sysconfig.get_path("data"))


def library_folder() -> Path:
    """Returns the folder of libisthmus.so."""
    build = build_folder()
    return build / "lib" if build else Path(__file__).parent


def preload(variable: str, path: Path) -> None:
    """Loads a library of this Python environment so that the core finds it by name.

    Does nothing if the environment variable is set or the file does not exist.
    """
    if variable in os.environ or not path.is_file():
        return
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return  # the core searches for the library itself and reports the paths that it tried


def import_optional(name: str) -> ModuleType:
    """Imports a module that requires packages of the extra `report`. Raises MissingError if one is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as failure:
        command = "scripts/setup" if checkout() else "pip install 'isthmus[report]'"
        raise MissingError(
            f"this command requires the package {failure.name} (extra isthmus[report]); run {command}"
        ) from failure


def import_bench_module(name: str) -> ModuleType:
    """Imports a module of bench/python. Raises MissingError in an installed package, which has none."""
    root = checkout()
    if root is None:
        raise MissingError(
            f"this command needs {name}, which only a checkout contains; run make build in a checkout, "
            "and then its .venv/bin/isthmus"
        )
    folder = str(root / "bench" / "python")
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(name)


def get_include() -> Path:
    """Returns the folder of the C and C++ headers, for -I."""
    root = checkout()
    return root / "include" if root else Path(__file__).parent / "include"


def get_cmake_dir() -> Path:
    """Returns the folder of the CMake package: cmake -Disthmus_ROOT=$(python -m isthmus.layout cmake).

    Raises MissingError in a build tree. Use `cmake --install` there.
    """
    return _installed_folder("cmake", "CMake package")


def get_pkgconfig_dir() -> Path:
    """Returns the folder of isthmus.pc: PKG_CONFIG_PATH=$(python -m isthmus.layout pkgconfig).

    Raises MissingError in a build tree. Use `cmake --install` there.
    """
    return _installed_folder(".", "pkg-config file")


def _installed_folder(name: str, content: str) -> Path:
    if build_folder() is not None:
        raise MissingError(f"a build tree has no {content}; run cmake --install build --prefix FOLDER")
    return Path(__file__).parent / name


def torch_extensions() -> dict[str, Path]:
    """Returns the extensions of isthmus.torch in a release wheel for this Python, by version of PyTorch."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    files = (Path(__file__).parent / "torch" / "_compiled").glob(f"torch-*{suffix}")
    return {file.name.removeprefix("torch-").removesuffix(suffix): file for file in files}


def missing_torch() -> str:
    """Returns the message that PyTorch is missing, with the command for the version that needs no compiler."""
    problem = f"PyTorch (package torch, extra isthmus[torch]) is not installed for {sys.executable}"
    if checkout() is not None:
        return f"{problem}; run scripts/setup torch && make build"
    versions = list(torch_extensions())
    if not versions:
        return (
            f"{problem}; run pip install 'isthmus[torch]'. The first import of isthmus.torch then compiles its "
            "extension, which takes about a minute and needs g++"
        )
    return (
        f"{problem}; run pip install torch=={versions[0]}, for which this package contains the extension. For "
        "other versions, the first import of isthmus.torch compiles it, which takes about a minute and needs "
        "g++ and ninja"
    )


def program(name: str) -> Path:
    """Returns the path of a built program. Raises MissingError."""
    build = build_folder()
    if build is None:
        raise MissingError(
            f"this command needs the program {name}, which only a checkout contains; "
            "run make build in a checkout, and then its .venv/bin/isthmus"
        )
    path = build / "bin" / name
    if not path.is_file():
        raise MissingError(f"{path} is not built; run make build")
    return path


if __name__ == "__main__":
    queries = {
        "include": get_include,
        "lib": library_folder,
        "cmake": get_cmake_dir,
        "pkgconfig": get_pkgconfig_dir,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in queries:
        sys.exit(f"usage: python -m isthmus.layout {'|'.join(queries)}")
    try:
        print(queries[sys.argv[1]]())
    except MissingError as error:
        sys.exit(f"isthmus: {error}")
