#!/usr/bin/env python3
"""Counts the files of src, include and python that name each collective of the collective table.

A file names a collective if an identifier or string in its code is the name of the collective, in any case,
alone or with the prefix isthmus_ or launch_. Comments and docstrings do not count, because adding a
collective does not change them. Longer names do not count either, because they mean other things: fused
operators (gemm_reduce_scatter), or functions of other libraries (MPI_Reduce_scatter_block,
reduce_scatter_tensor of PyTorch), or phases of hierarchical collectives (broadcast_phase). Texts with blanks,
such as error messages, do not count either.

For ordinary words (reduce, send, gather) the count is only an upper bound, because most files use the verb. The
limit therefore applies to unambiguous names. `--files NAME` lists the files that name one collective.
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
# Every front end adds an entry point. NCCL, MPI and the types of Python have one table of names each.
# The cost model names the phases of the plans that it predicts.
LIMIT = 24
LIMITED = ("broadcast", "reduce_scatter", "allgatherv")
TABLE = ROOT / "include/isthmus/collectives.def"

# A string, character or raw string literal (kept), or a comment (dropped).
C_TOKEN = re.compile(
    r'R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\''
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.S,
)


def code_of_c(text: str) -> str:
    def keep(match: re.Match) -> str:
        return " " if match["comment"] or " " in match[0] else match[0]

    return C_TOKEN.sub(keep, text)


def code_of_python(text: str) -> str:
    """The code without comments and without strings that are whole statements."""
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
    """The files that name each collective; includes new files that are not ignored."""
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
        print(f"{name}: {len(found[name])} files of src, include and python name it; at most {LIMIT} may:")
        print("  " + "\n  ".join(found[name]))
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
