#!/usr/bin/env python3
"""Downloads an unmodified llama.cpp and builds it together with the probe.

    build_llama.py pack FOLDER ARCHIVE                 downloads into FOLDER and packs what a CUDA build needs
    build_llama.py cuda ARCHIVE FOLDER ARCHITECTURES   builds from the archive offline (90-real: for Hopper)

tests/frontends/ggml/test_llama.py runs the probe with a prebuilt llama.cpp on the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROBE = [HERE / file for file in ("probe.cpp", "cpu_devices.cpp", "interface.cpp")]
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",
    "GGML_LLAMAFILE": "OFF",
    "GGML_CPU_REPACK": "OFF",
    "GGML_CCACHE": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_APP": "OFF",
}
# Attention over quantized caches and packed kernels take long to compile and are not used here.
CUDA_OPTIONS = OPTIONS | {
    "GGML_CUDA": "ON",
    "GGML_CUDA_FA_QUANTS": "f16-f16",
    "GGML_CUDA_COMPRESSION_MODE": "none",
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
}
# The part of the source tree that a CUDA build reads: no other device backend, no server, no tests.
PARTS = (
    *("CMakeLists.txt", "LICENSE", "cmake", "include", "src", "common", "vendor", "tools"),
    *("ggml/CMakeLists.txt", "ggml/cmake", "ggml/include", "ggml/src"),
)
LEFT_OUT = ("tools/cli", "tools/server", "tools/ui", "tools/rpc", "tools/tuning")
BACKENDS = ("ggml-cpu", "ggml-cuda")


def find_sources(folder: Path) -> Path:
    """Returns the source tree of llama.cpp in `folder`. Downloads it if necessary."""
    marker = next(folder.glob("*/vendor/llama.cpp/CMakeLists.txt"), None)
    if marker is None:
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
        unpack(next(folder.glob("*.tar.gz")), folder)
        marker = next(folder.glob("*/vendor/llama.cpp/CMakeLists.txt"))
    return marker.parent


def unpack(archive: Path, folder: Path) -> None:
    # Not tarfile: its safe extraction needs Python 3.11.4, and Debian 12 has 3.11.2.
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)


def pack(sources: Path, archive: Path) -> None:
    """Packs the part of the source tree that build_cuda needs into `archive`."""

    def is_needed(name: str) -> bool:
        backend = name.removeprefix("ggml/src/").split("/")[0] if name.startswith("ggml/src/ggml-") else ""
        is_folder = backend != "" and (sources / "ggml/src" / backend).is_dir()
        return not name.startswith(LEFT_OUT) and (not is_folder or backend in BACKENDS)

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as packed:
        for part in PARTS:
            packed.add(sources / part, arcname=part, filter=lambda each: each if is_needed(each.name) else None)


def build_cuda(archive: Path, folder: Path, architectures: str) -> Path:
    """Builds from an archive of `pack`, with llama-bench and llama-perplexity, for CMake's `architectures`."""
    sources = folder / "source"
    if not sources.is_dir():
        unpack(archive, sources)
    options = CUDA_OPTIONS | {"CMAKE_CUDA_ARCHITECTURES": architectures}
    nccl = Path(sysconfig.get_paths()["purelib"]) / "nvidia/nccl"
    if (nccl / "lib/libnccl.so.2").exists():  # the wheel lacks the file name that llama.cpp looks for
        options |= {"NCCL_INCLUDE_DIR": f"{nccl}/include", "NCCL_LIBRARY": f"{nccl}/lib/libnccl.so.2"}
    targets = ("llama", "ggml", "ggml-cpu", "llama-bench", "llama-perplexity")
    return compile_tree(sources, folder / "build", options, targets)


def compile_tree(sources: Path, tree: Path, options: dict[str, str], targets: tuple[str, ...]) -> Path:
    jobs = os.environ.get("JOBS", str(os.cpu_count() or 2))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    settings = [f"-D{name}={value}" for name, value in options.items()]
    for command in (
        ["cmake", "-S", str(sources), "-B", str(tree), "-G", "Ninja", *settings],
        ["cmake", "--build", str(tree), "-j", jobs, "--target", *targets],
    ):
        completed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if completed.returncode != 0:
            print(completed.stdout[-4000:], file=sys.stderr)
            raise subprocess.CalledProcessError(completed.returncode, command)
    return build_probe(sources, tree / "bin")


def header_folders(sources: Path) -> list[str]:
    includes = [sources / part for part in ("include", "ggml/include", "ggml/src")]
    return [f"-I{folder}" for folder in (*includes, HERE.parents[3] / "src", HERE.parents[3] / "include")]


def build_probe(sources: Path, folder: Path) -> Path:
    libraries = [folder / f"lib{name}.so" for name in ("llama", "ggml", "ggml-cpu", "ggml-base")]
    return link_probe(folder / "probe", PROBE, header_folders(sources), libraries, "$ORIGIN")


def build_prebuilt_probe(libraries: Path, probe: Path) -> Path:
    """Builds the probe for the libraries of scripts/setup_llama_sycl, which come without headers."""
    patterns = ("libllama-*", "libggml-????????.so*", "libggml-base-*", "libggml-cpu.so")
    files = [next(libraries.glob(pattern)) for pattern in patterns]
    (probe.parent / "libggml-cpu.so").symlink_to(files[-1])  # ggml looks for its backends next to the program
    path = f"{libraries}:{sys.prefix}/lib"  # the second has the libraries of the compiler that built the first
    return link_probe(probe, PROBE[:2], [f"-I{HERE.parent / 'interface'}"], files, path)


def link_probe(probe: Path, sources: list[Path], includes: list[str], libraries: list[Path], path: str) -> Path:
    options = ["-std=c++20", "-O1", *includes, *map(str, sources), "-o", str(probe), *map(str, libraries)]
    # DT_RPATH also applies to the libraries that these libraries need.
    linker = ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{path}", "-Wl,--unresolved-symbols=ignore-in-shared-libs"]
    subprocess.run(["g++", *options, *linker], check=True)
    return probe


def main() -> int:
    match sys.argv[1:]:
        case ["pack", folder, archive]:
            pack(find_sources(Path(folder)), Path(archive))
            print(f"{archive}: {Path(archive).stat().st_size / 2**20:.1f} MiB")
        case ["cuda", archive, folder, architectures]:
            start = time.monotonic()
            probe = build_cuda(Path(archive), Path(folder), architectures)
            print(f"{probe}: {time.monotonic() - start:.0f} s with {os.cpu_count()} cores")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
