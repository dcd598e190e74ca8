"""Fetches an unmodified llama.cpp, builds its libraries for the CPU, and the probe beside them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Only what the test plays: no kernels for repacked weights, no programs, and C++ unoptimised: its compilation
# takes a minute on two cores, the test itself seconds. The products of matrices are in C.
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_C_FLAGS_RELEASE": "-O1",
    "CMAKE_CXX_FLAGS_RELEASE": "-O0",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",
    "GGML_LLAMAFILE": "OFF",
    "GGML_CPU_REPACK": "OFF",
    "GGML_CCACHE": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_BUILD_COMMON": "OFF",
    "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
}


def fetch(folder: Path) -> Path:
    """The source tree of llama.cpp in `folder`, downloaded once."""
    found = next(folder.glob("*/vendor/llama.cpp/CMakeLists.txt"), None)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        pip += [
            "--no-binary",
            ":all:",
            "--no-build-isolation",
            "-d",
            str(folder),
            "-r",
            str(HERE / "source.txt"),
        ]
        subprocess.run(pip, check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        found = next(folder.glob("*/vendor/llama.cpp/CMakeLists.txt"))
    return found.parent


def build(folder: Path) -> Path:
    """Builds in `folder` what is not built yet. Returns the probe; llama.cpp's libraries lie beside it."""
    sources = fetch(folder)
    tree = folder / "build"
    tools = Path(sys.executable).parent
    jobs = os.environ.get("JOBS", str(os.cpu_count() or 2))
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    for command in (
        ["cmake", "-S", str(sources), "-B", str(tree), "-G", "Ninja", *options],
        ["cmake", "--build", str(tree), "-j", jobs, "--target", "llama", "ggml", "ggml-cpu"],
    ):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return build_probe(sources, tree / "bin")


def build_probe(sources: Path, libraries: Path) -> Path:
    probe = libraries / "probe"
    includes = [f"-I{sources / part}" for part in ("include", "ggml/include", "ggml/src")]
    command = ["g++", "-std=c++20", "-O1", *includes, str(HERE / "probe.cpp"), str(HERE / "cpu_devices.cpp")]
    command += [
        "-o",
        str(probe),
        f"-L{libraries}",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--unresolved-symbols=ignore-in-shared-libs",
    ]
    subprocess.run([*command, "-lllama", "-lggml", "-lggml-cpu", "-lggml-base"], check=True)
    return probe
