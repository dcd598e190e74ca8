#!/usr/bin/env python3
"""Counts, for each collective of THE TABLE, the files of src, include and python that name it.

A file names a collective when an identifier or a string in its code does, in any case: its plain name, or
that behind isthmus_ or launch_. Comments and docstrings do not count: nobody edits them to add a collective.
Nor do longer names, which are other things: fused operators (gemm_reduce_scatter), functions of other
libraries (MPI_Reduce_scatter_block, PyTorch's reduce_scatter_tensor).

Of one ordinary word (reduce, send, gather) most files mean the verb; what counts there is an upper bound. So
the limit holds for names that mean nothing else. `--files NAME` lists the files of one.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "include", "python")
LIMIT = 21  # each front end has its own entry
LIMITED = ("broadcast", "reduce_scatter", "allgatherv")
TABLE = ROOT / "include/isthmus/collectives.def"

# A string or character literal (kept), a raw string (kept), or a comment (dropped).
C_TOKEN = re.compile(
    r'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.S,
)


def code_of_c(text: str) -> str:
    return C_TOKEN.sub(lambda match: " " if match["comment"] else match[0], text)


def code_of_python(text: str) -> str:
    """Without comments, and without strings that are statements of their own."""
    standalone = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return " ".join(
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type != tokenize.COMMENT and not (token.type == tokenize.STRING and token.start in standalone)
    )


def code_of_toml(text: str) -> str:
    return re.sub(r'("(?:\\.|[^"\\\n])*")|#[^\n]*', lambda match: match[1] or "", text)


READERS = {
    ".h": code_of_c,
    ".hpp": code_of_c,
    ".cpp": code_of_c,
    ".cu": code_of_c,
    ".cuh": code_of_c,
    ".def": code_of_c,
    ".in": code_of_c,
    ".py": code_of_python,
    ".pyi": code_of_python,
    ".toml": code_of_toml,
}


def names() -> list[str]:
    return re.findall(r"^ISTHMUS_COLLECTIVE\((\w+),", TABLE.read_text(), re.M)


def find_files() -> dict[str, list[str]]:
    """The files that name each collective, tracked ones and new ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, list[str]] = {name: [] for name in names()}
    patterns = {
        name: re.compile(rf"(?<![A-Za-z0-9_])(?:(?:isthmus|launch)_)?{name}(?!\w)", re.I) for name in found
    }
    for path in sorted(set(listing.stdout.splitlines())):
        reader = READERS.get(Path(path).suffix)
        if reader is None or not (ROOT / path).is_file():
            continue
        code = reader((ROOT / path).read_text())
        for name, pattern in patterns.items():
            if pattern.search(code):
                found[name].append(path)
    return found


def main() -> int:
    found = find_files()
    if sys.argv[1:2] == ["--files"]:
        print("\n".join(found[sys.argv[2]]))
        return 0
    print("files that name a collective: " + ", ".join(f"{name} {len(files)}" for name, files in found.items()))
    exceeded = [name for name in LIMITED if len(found[name]) > LIMIT]
    for name in exceeded:
        print(f"{name}: {len(found[name])} files of src, include and python name it, at most {LIMIT} may:")
        print("  " + "\n  ".join(found[name]))
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
