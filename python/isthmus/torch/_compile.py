"""Loads the extension of isthmus.torch for the installed PyTorch.

An extension works with only one version of PyTorch. A build tree contains the one for the PyTorch in .venv, and
a release wheel those for one version. For every other PyTorch, the first import compiles the sources with
PyTorch's extension builder in a separate process and stores the result in `cache_folder()`. Ranks that start at
the same time compile it only once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
OLDEST_TORCH = (2, 6)


def load() -> ModuleType:
    """Returns the extension and compiles it if necessary. Raises ImportError with a hint."""
    import torch

    if torch_version() < OLDEST_TORCH:
        raise ImportError(
            f"isthmus.torch requires PyTorch {'.'.join(map(str, OLDEST_TORCH))} or newer; this is PyTorch "
            f"{torch.__version__} (pip install --upgrade torch)"
        )
    try:
        return importlib.import_module("isthmus.torch._extension")
    except ImportError:  # there is none, or it was compiled for another PyTorch
        return _import_file(_compiled())


def torch_version() -> tuple[int, int]:
    """Returns the major and the minor version of PyTorch."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def require_torch(oldest: tuple[int, int], name: str, kind: str, alternative: str) -> None:
    """Raises RuntimeError if PyTorch is older than `oldest`. `kind` is what `name` is: a function or a pass."""
    import torch

    if torch_version() < oldest:
        raise RuntimeError(
            f"{name}: PyTorch {torch.__version__} must be {oldest[0]}.{oldest[1]} or newer, the oldest version "
            f"with which this {kind} was tested; upgrade torch, or {alternative}"
        )


def cache_folder() -> Path:
    """Returns the folder of compiled extensions: ISTHMUS_CACHE_DIR, or isthmus/ in the user's cache."""
    configured = os.environ.get("ISTHMUS_CACHE_DIR")
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(configured) if configured else user_cache / "isthmus"


def _inputs() -> dict[str, list[str]]:
    """Returns the sources and the arguments of the compiler and the linker."""
    from .. import layout

    checkout = layout.checkout()
    if checkout is None:
        root = HERE / "_sources"
        sources = root.rglob("*.cpp")
    else:
        root = checkout / "src"
        sources = [*root.glob("frontends/torch/*.cpp"), root / "failure/watchdog.cpp"]
    library = layout.library_folder() / "libisthmus.so.0"
    return {
        "sources": sorted(str(source) for source in sources),
        "includes": [str(root), str(layout.get_include())],
        "link": [str(library), f"-Wl,-rpath,{library.parent}"],
    }


def _compiled() -> Path:
    import torch

    import isthmus
    from isthmus import layout

    # From scripts/wheel. The builds of a version of PyTorch, for CPUs and for CUDA, have the same headers.
    packaged = layout.torch_extensions().get(torch.__version__.split("+")[0])
    if packaged is not None:
        return packaged

    folder = cache_folder()
    inputs = _inputs()
    # Installations of one version can have different paths, and the extension contains that of its library.
    paths = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:8]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    name = f"torch-{torch.__version__}-isthmus-{isthmus.__version__}-{paths}{suffix}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise ImportError(
            f"isthmus.torch: cache folder {folder} must belong to this user and must not be writable by "
            "others, because code is loaded from it; set ISTHMUS_CACHE_DIR to another folder"
        )
    target = folder / name
    folders = {Path(source).parent for source in inputs["sources"]}
    newest = max(file.stat().st_mtime for each in folders for file in each.glob("*pp"))
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists() or target.stat().st_mtime < newest:
            _run_builder(torch.__version__, target, inputs)
    return target


def _run_builder(torch_version: str, target: Path, inputs: dict[str, list[str]]) -> None:
    from .. import layout

    packaged = ", ".join(layout.torch_extensions())
    reason = f"; this package contains the extension for PyTorch {packaged} only" if packaged else ""
    notice = f"isthmus.torch: compiling for PyTorch {torch_version} (about a minute, once{reason})"
    print(notice, file=sys.stderr, flush=True)
    command = [sys.executable, __file__, str(target), json.dumps(inputs)]
    result = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL
    )
    if result.returncode != 0 or not target.exists():
        last_lines = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise ImportError(
            f"isthmus.torch could not be compiled for PyTorch {torch_version}; install g++ 12 or newer, "
            "Python's headers (Debian: g++ python3-dev) and ninja (pip install 'isthmus[torch]'). "
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
    sys.modules["isthmus.torch"]._extension = module  # type: ignore[attr-defined]
    return module


def build(target: Path, inputs: dict[str, list[str]]) -> None:
    """Compiles the sources as one translation unit, because PyTorch's headers take half a minute."""
    import tempfile

    import torch
    from torch.utils import cpp_extension

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unity_source = Path(folder) / "whole.cpp"
        lines = [f'#include "{path}"\n' for path in inputs["sources"]]
        unity_source.write_text("".join(lines), encoding="utf-8")
        # Links a private C++ runtime with hidden symbols. It must precede PyTorch's libraries, which export
        # parts of their own runtime.
        runtime = ["-static-libstdc++", "-Wl,--exclude-libs,libstdc++.a", "-l:libstdc++.a"]
        if not torch.compiled_with_cxx11_abi():
            runtime = []  # these strings share an object of the runtime, so a process can have only one (2.6)
        built = cpp_extension.load(
            name="_extension",
            sources=[str(unity_source)],
            extra_cflags=["-std=c++20", "-O1", "-g0", "-fvisibility=hidden"],
            extra_ldflags=[*inputs["link"], *runtime],
            extra_include_paths=inputs["includes"],
            build_directory=folder,
            is_python_module=False,
        )
        del built
        (Path(folder) / "_extension.so").replace(target)


if __name__ == "__main__":
    # Runs as a file, because importing the package requires the extension.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    build(Path(sys.argv[1]), json.loads(sys.argv[2]))
