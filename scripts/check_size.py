#!/usr/bin/env python3
"""Checks the length of functions and files.

A function has at most 50 lines, from its name to the closing brace (counted by lizard). Longer functions are
listed in EXCEPTIONS with a reason. A file of more than 600 lines prints a warning: check whether it holds one
concern.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lizard

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "include", "python", "bench", "apps", "examples")
SUFFIXES = (".h", ".hpp", ".c", ".cpp", ".cu", ".cuh", ".py")
FILE_LINES = 600
FUNCTION_LINES = 50

COMMAND_LINE = "the signature is the command line: one parameter per option, with its help text"
EXCEPTIONS = {
    "python/isthmus/cli/bench.py bench": COMMAND_LINE,
    "python/isthmus/cli/explain.py explain": COMMAND_LINE,
    "python/isthmus/cli/run.py run": COMMAND_LINE,
    "python/isthmus/cli/simulate.py simulate": COMMAND_LINE,
    "python/isthmus/cli/tune.py tune": COMMAND_LINE,
}


def sources() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [p for p in listing.stdout.splitlines() if p.endswith(SUFFIXES) and (ROOT / p).is_file()]


def long_functions(path: str) -> dict[str, int]:
    """The functions of a file that exceed the limit, with their length."""
    functions = lizard.analyze_file(str(ROOT / path)).function_list
    return {f"{path} {f.name}": f.length for f in functions if f.length > FUNCTION_LINES}


def main() -> int:
    paths = sources()
    for path in paths:
        lines = len((ROOT / path).read_text().splitlines())
        if lines > FILE_LINES:
            print(f"warning: {path}: {lines} lines; check whether it holds one concern")
    found = {name: lines for path in paths for name, lines in long_functions(path).items()}
    problems = [
        f"{name}: {lines} lines; a function has at most {FUNCTION_LINES}"
        for name, lines in found.items()
        if name not in EXCEPTIONS
    ]
    problems += [
        f"{name}: no longer too long; remove its exception" for name in EXCEPTIONS.keys() - found.keys()
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"sizes: {len(paths)} files, {len(found)} long functions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
