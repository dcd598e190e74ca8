"""Compiles and runs all code blocks of the documentation that follow a comment `<!-- test: ... -->`.

The comment can contain `prints "TEXT"` (each TEXT must be in the output) and `ranks N` (start N processes under
MPI). Languages: c, cpp (MPI and SYCL), python, sh.

`<!-- test: file NAME -->` saves the block as a file. The sh blocks of the page then run in a folder that
contains all of its files, with ISTHMUS (this checkout) and VENV (its virtual environment) set.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
VENV = ROOT / ".venv"
BLOCK = re.compile(r"<!-- test:(?P<rule>.*?)-->\s*\n```(?P<language>\w+)\n(?P<code>.*?)^```", re.M | re.S)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT_S = 200


@dataclass
class Block:
    location: str
    language: str
    code: str
    expected_output: list[str]
    ranks: int
    file: str | None = None  # name of the file, if the block is a file
    files: dict[str, str] = field(default_factory=dict)  # sh: files of the page


def read_blocks(document: Path) -> list[Block]:
    page_blocks = []
    text = document.read_text()
    for match in BLOCK.finditer(text):
        rule = match["rule"]
        ranks = re.search(r"\branks (\d+)", rule)
        file = re.search(r"\bfile (\S+)", rule)
        line = text.count("\n", 0, match.start("code"))
        page_blocks.append(
            Block(
                location=f"{document.relative_to(ROOT)}:{line}",
                language=match["language"],
                code=match["code"],
                expected_output=re.findall(r'"([^"]*)"', rule),
                ranks=int(ranks[1]) if ranks else 1,
                file=file[1] if file else None,
            )
        )
    files = {block.file: block.code for block in page_blocks if block.file}
    runnable = [block for block in page_blocks if not block.file]
    for block in runnable:
        block.files = files
    has_shell_block = any(block.language == "sh" for block in runnable)
    assert has_shell_block or not files, f"{document}: no sh block uses the files {list(files)}"
    return runnable


def all_blocks() -> list[Block]:
    return [block for document in DOCUMENTS for block in read_blocks(document)]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
        "OCL_ICD_FILENAMES": str(VENV / "lib" / "libintelocl.so"),
        "COLUMNS": "110",
        "ISTHMUS": str(ROOT),
        "VENV": str(VENV),
    }


def run_command(command: list[str], folder: Path) -> str:
    completed = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, f"{shlex.join(command)}: exit status {completed.returncode}\n{output}"
    return output


def compile_block(block: Block, folder: Path) -> list[str]:
    """Compiles a C or C++ block. Returns the command that runs it."""
    program = folder / "program"
    library = BUILD / "lib"
    flags = [f"-I{ROOT / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}", "-Wall", "-Wextra", "-Werror"]
    if block.language == "c":
        source = folder / "program.c"
        command = ["gcc", "-std=c99", str(source), "-o", str(program), *flags, "-listhmus"]
    else:
        source = folder / "program.cpp"
        venv = [f"-isystem{VENV / 'include'}", f"-isystem{VENV / 'include' / 'sycl'}", f"-L{VENV / 'lib'}"]
        venv += ["-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-Wl,-rpath,{VENV / 'lib'}"]
        command = ["g++", "-std=c++20", str(source), "-o", str(program), *flags, *venv]
        command += ["-listhmus", "-lmpi", "-lsycl"]
    source.write_text(block.code)
    run_command(command, folder)
    launch = [str(VENV / "bin" / "mpiexec"), "-n", str(block.ranks)] if block.ranks > 1 else []
    return [*launch, str(program)]


@pytest.mark.parametrize("block", all_blocks(), ids=lambda block: block.location)
def test_block(block: Block, tmp_path: Path) -> None:
    folder = ROOT
    if block.language in ("c", "cpp"):
        folder = tmp_path
        command = compile_block(block, tmp_path)
    elif block.language == "python":
        (tmp_path / "program.py").write_text(block.code)
        folder = tmp_path
        command = [sys.executable, "program.py"]
    else:
        assert block.language == "sh", f"language {block.language} is not supported"
        if block.files:
            folder = tmp_path
            for name, text in block.files.items():
                (folder / name).write_text(text)
        command = [shutil.which("bash") or "bash", "-euo", "pipefail", "-c", block.code]
    output = run_command(command, folder)
    for text in block.expected_output:
        assert text in output, f"{block.location}: {text!r} is not in\n{output}"


def languages_of(page: str) -> set[str]:
    return {block.language for block in read_blocks(ROOT / page)}


def test_front_pages_have_runnable_blocks() -> None:
    assert {"cpp", "python"} <= languages_of("README.md")
    assert "c" in languages_of("docs/start/c.md")
