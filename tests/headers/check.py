#!/usr/bin/env python3
"""Compiles the public headers and the examples with one compiler.

Uses -fsyntax-only; warnings are errors.
g++ compiles each header on its own, so each must include what it needs.
Clang uses the same standard library. It compiles all headers of a language together, in both orders.
g++ skips the examples in C++, because the build compiles them with the same flags.

    check.py --cxx g++ --venv .venv
    check.py --cxx newest-clang --venv .venv     the newest installed clang++; exits with 77 if there is none

C headers are compiled as C11 and as C++17, mpi.hpp as C++17 and C++20, the rest as C++20 with DPC++'s headers.

<sycl/sycl.hpp> takes two thirds of the compile time of a SYCL header. Only sycl/features.hpp includes it. It is
precompiled once for all headers that include features.hpp, directly or indirectly, so they see the same
declarations as without the precompiled header. Other headers are compiled without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
FEATURES = INCLUDE / "isthmus/sycl/features.hpp"
SKIPPED = 77


def newest_clang() -> str | None:
    """Returns the clang++-N in PATH with the highest N, or clang++."""
    paths = [Path(folder) for folder in os.environ["PATH"].split(":") if folder]
    found = [file.name for folder in paths if folder.is_dir() for file in folder.glob("clang++-*")]
    numbered = [name for name in found if re.fullmatch(r"clang\+\+-\d+", name)]
    if numbered:
        return max(numbered, key=lambda name: int(name.rsplit("-", 1)[1]))
    return shutil.which("clang++")


def closure(file: Path, seen: set[Path] | None = None) -> set[Path]:
    """Returns the file and all Isthmus headers that it includes, directly or indirectly."""
    seen = set() if seen is None else seen
    if file not in seen:
        seen.add(file)
        for name in re.findall(
            r'^#include [<"]((?:/|isthmus/|sccl)[^>"]*)[>"]', file.read_text(), re.MULTILINE
        ):
            closure(INCLUDE / name, seen)
    return seen


@dataclass
class Compiler:
    cxx: str
    venv: Path
    scratch: Path
    failures: list[str] = field(default_factory=list)

    @property
    def is_clang(self) -> bool:
        return "clang" in Path(self.cxx).name

    def system(self) -> list[str]:
        include = self.venv / "include"
        return ["-isystem", str(include), "-isystem", str(include / "sycl")]

    def flags(self, language: str, standard: str) -> list[str]:
        defines = ["-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING"] if language == "c++" else []
        warnings = ["-Wall", "-Wextra", "-Werror", *(["-pedantic"] if language == "c" else [])]
        return ["-x", language, f"-std={standard}", *warnings, *defines, f"-I{INCLUDE}", *self.system()]

    def precompile(self) -> None:
        """Precompiles <sycl/sycl.hpp> in the format of the compiler."""
        header = self.scratch / "ahead.hpp"
        header.write_text("#include <sycl/sycl.hpp>\n")
        target = self.scratch / ("ahead.pch" if self.is_clang else "ahead.hpp.gch")
        form = ["-Xclang", "-emit-pch"] if self.is_clang else []
        flags = [*self.flags("c++-header", "c++20"), "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING"]
        subprocess.run([self.cxx, *flags, *form, str(header), "-o", str(target)], check=True)

    def ahead(self) -> list[str]:
        if self.is_clang:
            return ["-include-pch", str(self.scratch / "ahead.pch")]
        return ["-Winvalid-pch", "-include", str(self.scratch / "ahead.hpp")]

    def check(self, file: Path, language: str, standard: str) -> None:
        uses_sycl = standard == "c++20" and FEATURES in closure(file)
        ahead = self.ahead() if uses_sycl else []
        command = [self.cxx, "-fsyntax-only", *ahead, *self.flags(language, standard), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or done.stderr:
            name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name
            self.failures.append(f"{name} as {standard}:\n{done.stdout}{done.stderr}")


def headers() -> list[tuple[Path, str, str]]:
    found = []
    for file in sorted(INCLUDE.rglob("*.h")):
        found += [(file, "c", "c11"), (file, "c++", "c++17")]
    for file in sorted(INCLUDE.rglob("*.hpp")):
        found.append((file, "c++", "c++20"))
        if "mpi" in file.relative_to(INCLUDE).as_posix().split("sycl")[0]:
            found.append((file, "c++", "c++17"))
    return found


def join(found: list[tuple[Path, str, str]], scratch: Path) -> list[tuple[Path, str, str]]:
    """Returns two files per standard, which include all headers of this standard in opposite orders."""
    joined = []
    for language, standard in sorted({case[1:] for case in found}):
        includes = [f'#include "{case[0]}"\n' for case in found if case[1:] == (language, standard)]
        for name, order in (("ascending", includes), ("descending", includes[::-1])):
            file = scratch / f"{name}_{standard}.{'c' if language == 'c' else 'cpp'}"
            file.write_text("".join(order))
            joined.append((file, language, standard))
    return joined


def examples(sycl: bool) -> list[tuple[Path, str, str]]:
    folder = ROOT / "examples"
    found = [(file, "c", "c11") for file in sorted(folder.glob("*.c"))]
    if sycl:
        found += [(file, "c++", "c++20") for file in sorted(folder.glob("*.cpp"))]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cxx", required=True, help="the compiler, or newest-clang")
    parser.add_argument(
        "--venv", required=True, type=Path, help="virtual environment with the headers of DPC++ and MPI"
    )
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    cxx = newest_clang() if arguments.cxx == "newest-clang" else arguments.cxx
    if cxx is None:
        print("skipped: no clang++ in PATH; run scripts/setup as root to install it")
        return SKIPPED
    with tempfile.TemporaryDirectory() as scratch:
        compiler = Compiler(cxx, arguments.venv, Path(scratch))
        compiler.precompile()
        work = join(headers(), compiler.scratch) if compiler.is_clang else headers()
        work += examples(sycl=compiler.is_clang)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(lambda case: compiler.check(*case), work))
    print("\n".join(compiler.failures))
    print(f"{cxx}: {len(work)} compilations of public headers and examples, {len(compiler.failures)} failed")
    return 1 if compiler.failures else 0


if __name__ == "__main__":
    sys.exit(main())
