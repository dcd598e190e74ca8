#!/usr/bin/env python3
"""Checks the walk through the code in docs/internals/architecture.md, section "One allreduce, file by file".

Each numbered line names a file and its functions: `path`: `function`, ... . Every file must exist and declare
or define the functions (so that renames are noticed), no file may be listed twice, and the number of files
stated in the text must match the number of lines.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/internals/architecture.md"
HEADING = "\n## One allreduce, file by file\n"
LINE = re.compile(r"^(\d+)\. `([^`]+)`: ((?:`\w+`(?:, )?)+)", re.MULTILINE)
STATED = re.compile(r"\b(\d+) files\b")


def check_line(path: str, names: list[str]) -> list[str]:
    file = ROOT / path
    if not file.is_file():
        return [f"{path}: no such file"]
    text = file.read_text()
    # Only declarations and definitions match: a type or a scope precedes the name, and parameters follow it.
    return [
        f"{path}: has no function {name}"
        for name in names
        if not re.search(rf"(?:[\w>&*]\s+|::|[&*]){name}\s*\(", text)
    ]


def main() -> int:
    _, found, rest = DOCUMENT.read_text().partition(HEADING)
    if not found:
        sys.exit(f"{DOCUMENT}: no heading {HEADING.strip()!r}")
    section = rest.split("\n## ", 1)[0]
    lines = [
        (int(number), path, re.findall(r"`(\w+)`", names)) for number, path, names in LINE.findall(section)
    ]
    problems = [problem for _, path, names in lines for problem in check_line(path, names)]
    paths = [path for _, path, _ in lines]
    problems += [f"{path}: listed twice in the walk" for path in set(paths) if paths.count(path) > 1]
    if [number for number, _, _ in lines] != list(range(1, len(lines) + 1)):
        problems.append("the lines of the walk must be numbered from 1")
    stated = STATED.search(section)
    if stated is None or int(stated.group(1)) != len(lines):
        problems.append(f"the walk has {len(lines)} files, but the text states {stated and stated.group(1)}")
    print(
        *(f"docs/internals/architecture.md: {problem}" for problem in problems),
        sep="\n",
        end="\n" if problems else "",
    )
    print(f"walk: {len(lines)} files, {sum(len(names) for _, _, names in lines)} functions")
    return 1 if problems or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
