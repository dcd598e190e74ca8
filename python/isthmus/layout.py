"""Where things lie: the checkout and build folder that this package came from, and its environment."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path


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
    found = _build()
    return found[0] if found else None


def build_folder() -> Path | None:
    """The CMake build folder, or None for an installed package."""
    found = _build()
    return found[1] if found else None


def environment_folder() -> Path:
    """The (virtual) environment that this Python runs in."""
    return Path(sys.prefix)


def library_folder() -> Path:
    """Where libisthmus.so is."""
    build = build_folder()
    return build / "lib" if build else Path(__file__).parent


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
