#!/usr/bin/env python3
"""Files have at most 400 lines, functions at most 50, from the name to the closing brace (counted by lizard).

What is longer stands in EXCEPTIONS with its reason; everything else is an error. A function is named as lizard
names it, behind its file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lizard

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "include", "python", "bench", "apps", "examples")
SUFFIXES = (".h", ".hpp", ".c", ".cpp", ".cu", ".cuh", ".py")
FILE_LINES = 400
FUNCTION_LINES = 50

COMMAND_LINE = "the signature is the command line: an option a parameter, with its help"
ONE_PROGRAM = "one measurement from its options to its record; the parts are used once"
FLAT_LIST = "a flat list of names, one a line"
ONE_CLASS = "one class, a method a collective: nearly all of it says what each takes, writes and returns"
EXCEPTIONS = {
    "include/isthmus/sycl/collectives.hpp": ONE_CLASS,
    "python/isthmus/cli/bench.py bench": COMMAND_LINE,
    "python/isthmus/cli/run.py run": COMMAND_LINE,
    "python/isthmus/cli/tune.py tune": COMMAND_LINE,
    "src/device/cuda/cuda_api.cpp isthmus::gpu::cuda_api::load": FLAT_LIST,
    "src/device/hip/hip_api.cpp isthmus::gpu::hip_api::load": FLAT_LIST,
}


def sources() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [p for p in listing.stdout.splitlines() if p.endswith(SUFFIXES) and (ROOT / p).is_file()]


def sizes(path: str) -> list[tuple[str, int, int]]:
    """What a file has that is too long: its name, its lines and the most that are allowed."""
    found = lizard.analyze_file(str(ROOT / path))
    lines = len((ROOT / path).read_text().splitlines())
    long = [(path, lines, FILE_LINES)] if lines > FILE_LINES else []
    for function in found.function_list:
        if function.length > FUNCTION_LINES:
            long.append((f"{path} {function.name}", function.length, FUNCTION_LINES))
    return long


def main() -> int:
    paths = sources()
    long = {name: (lines, most) for path in paths for name, lines, most in sizes(path)}
    problems = [
        f"{name}: {n} lines, at most {most}" for name, (n, most) in long.items() if name not in EXCEPTIONS
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    for name in EXCEPTIONS.keys() - long.keys():
        print(f"{name}: no longer too long, its exception can go")
    print(f"sizes: {len(paths)} files, {len(long)} longer than the rule, {len(problems)} without a reason")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
