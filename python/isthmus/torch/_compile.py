"""Loads the extension of isthmus.torch for the installed PyTorch.

In a build tree, the extension is next to this file. An extension works with only one version of PyTorch. An
installed package therefore contains the sources, and a release wheel also the extensions for one version. For
others, the first import compiles the sources with PyTorch's extension builder in a separate process and stores
the result in `cache_folder()`. Ranks that start at the same time compile it only once.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "_sources"
LIBRARY = HERE.parent / "libisthmus.so.0"


def load() -> ModuleType:
    """Returns the extension and compiles it if necessary. Raises ImportError with a hint."""
    try:
        return importlib.import_module("isthmus.torch._extension")
    except ImportError as failure:
        if not SOURCES.is_dir():
            raise ImportError(
                f"isthmus.torch was not built for this PyTorch: {failure}. "
                "Build it with scripts/build in an environment with this PyTorch (docs/guide/pytorch.md)."
            ) from failure
    return _import_file(_compiled())


def cache_folder() -> Path:
    """Returns the folder of compiled extensions: ISTHMUS_CACHE_DIR, or isthmus/ in the user's cache."""
    configured = os.environ.get("ISTHMUS_CACHE_DIR")
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(configured) if configured else user_cache / "isthmus"


def _compiled() -> Path:
    import torch

    # From scripts/wheel. The builds of a version of PyTorch, for CPUs and for CUDA, have the same headers.
    version = torch.__version__.split("+")[0]
    packaged = HERE / "_compiled" / f"torch-{version}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if packaged.is_file():
        return packaged

    import isthmus

    folder = cache_folder()
    name = f"torch-{torch.__version__}-isthmus-{isthmus.__version__}{sysconfig.get_config_var('EXT_SUFFIX')}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ImportError(
            f"isthmus.torch: cache folder {folder} must belong to this user and must not be writable by "
            "others, because code is loaded from it; set ISTHMUS_CACHE_DIR to another folder"
        )
    target = folder / name
    newest = max(source.stat().st_mtime for source in SOURCES.rglob("*pp"))
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists() or target.stat().st_mtime < newest:
            _run_builder(torch.__version__, target)
    return target


def _run_builder(torch_version: str, target: Path) -> None:
    notice = f"isthmus.torch: compiling for PyTorch {torch_version} (about a minute, once)"
    print(notice, file=sys.stderr, flush=True)
    command = [sys.executable, __file__, str(target)]
    result = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
    )
    if result.returncode != 0 or not target.exists():
        last_lines = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise ImportError(
            f"isthmus.torch could not be compiled for PyTorch {torch_version}; install g++ 12 or newer, "
            "Python's headers (Debian: g++ python3-dev) and ninja (pip install isthmus[torch]). "
            f"Output of the compiler:\n{last_lines}"
        )


def _import_file(path: Path) -> ModuleType:
    name = "isthmus.torch._extension"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"isthmus.torch: {path} is not an extension module for this Python; remove it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def build(target: Path) -> None:
    """Compiles the sources as one translation unit, because PyTorch's headers take half a minute."""
    import tempfile

    from torch.utils import cpp_extension

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unity_source = Path(folder) / "whole.cpp"
        lines = [f'#include "{path}"\n' for path in sorted(SOURCES.rglob("*.cpp"))]
        unity_source.write_text("".join(lines), encoding="utf-8")
        # Links a private C++ runtime with hidden symbols. It must precede PyTorch's libraries, which export
        # parts of their own runtime.
        runtime = ["-static-libstdc++", "-Wl,--exclude-libs,libstdc++.a", "-l:libstdc++.a"]
        built = cpp_extension.load(
            name="_extension",
            sources=[str(unity_source)],
            extra_cflags=["-std=c++20", "-O1", "-g0", "-fvisibility=hidden"],
            extra_ldflags=[str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}", *runtime],
            extra_include_paths=[str(SOURCES), str(HERE.parent / "include")],
            build_directory=folder,
            is_python_module=False,
        )
        del built
        (Path(folder) / "_extension.so").replace(target)


if __name__ == "__main__":
    # Runs as a file, because importing the package requires the extension.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    build(Path(sys.argv[1]))
