"""The extension of isthmus.torch for the PyTorch that is there.

A build tree has it beside this file. An installed package brings its sources, because an extension fits one
version of PyTorch: it is compiled at the first import, with PyTorch's own builder in a process of its own, and
kept in `cache_folder()`. Ranks that start at the same time compile it once.
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
    """The extension, compiled where that is needed. Raises ImportError that says what to do."""
    try:
        return importlib.import_module("isthmus.torch._extension")
    except ImportError as failure:
        if not SOURCES.is_dir():
            raise ImportError(
                f"isthmus.torch was not built for this PyTorch: {failure}. "
                "Build it with scripts/build in an environment that has it (docs/torch.md)."
            ) from failure
    return _import_file(_compiled())


def cache_folder() -> Path:
    """Where compiled extensions lie: ISTHMUS_CACHE_DIR, or isthmus/ in the user's cache."""
    configured = os.environ.get("ISTHMUS_CACHE_DIR")
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(configured) if configured else user_cache / "isthmus"


def _compiled() -> Path:
    import torch

    import isthmus

    folder = cache_folder()
    name = f"torch-{torch.__version__}-isthmus-{isthmus.__version__}{sysconfig.get_config_var('EXT_SUFFIX')}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ImportError(
            f"isthmus.torch: {folder} must belong to this user and be writable by nobody else, since code is "
            "loaded from it; name another folder by ISTHMUS_CACHE_DIR"
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
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if result.returncode != 0 or not target.exists():
        last_lines = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise ImportError(
            f"isthmus.torch could not be compiled for PyTorch {torch_version}; it needs g++ 12 or newer, "
            "Python's headers (Debian: g++ python3-dev) and ninja (pip install isthmus[torch]). "
            f"The compiler said:\n{last_lines}"
        )


def _import_file(path: Path) -> ModuleType:
    name = "isthmus.torch._extension"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"isthmus.torch: {path} is no extension module of this Python; remove it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def build(target: Path) -> None:
    """Compiles the sources into `target`, as one translation unit: PyTorch's headers cost half a minute."""
    import tempfile

    from torch.utils import cpp_extension

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unity_source = Path(folder) / "whole.cpp"
        lines = [f'#include "{path}"\n' for path in sorted(SOURCES.rglob("*.cpp"))]
        unity_source.write_text("".join(lines), encoding="utf-8")
        # A C++ runtime of its own with nothing of it visible, before PyTorch's libraries, which export parts
        # of theirs.
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
    # As a file, not as a part of its package, whose import asks for the extension.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    build(Path(sys.argv[1]))
