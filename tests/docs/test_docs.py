"""Runs the code blocks of the documentation as their readers do: with an installation, not with the checkout.

A comment before a block says what happens to it:

    <!-- test: -->                  run the block
    <!-- test: prints "TEXT" -->    run it; each TEXT must be in the output
    <!-- test: ranks N -->          start the C++ program with N processes
    <!-- test: file NAME -->        save the block as a file for the sh and cmake blocks of the page
    <!-- test: checkout -->         run the block in the checkout, as pages for contributors always do
    <!-- no test: REASON -->        one of REASONS

Further lines of a comment `test` are code that readers do not see. It precedes the block, or surrounds it if it
has a line `...`. Blocks of the language toml are configuration files, and need no comment. Blocks of the
language text are output or a synopsis, and are not run.

Blocks run in an empty folder, with an environment that contains the wheel and what it requires. C programs are
compiled with pkg-config and the installed prefix. $PREFIX is the prefix.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from installation import ROOT

FENCE = re.compile(
    r"(?:^<!-- (?P<kind>test|no test):(?P<rule>[^\n]*?)(?:\n(?P<hidden>.*?))?-->\n)?"
    r"^```(?P<language>[\w{}]*)[^\n]*\n(?P<code>.*?)^```$",
    re.M | re.S,
)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REASONS = {
    "builds Isthmus",  # CI does this before the tests
    "installs packages",
    "needs a device",
    "needs several machines",
    "takes minutes",
    "shows a format",
}
LANGUAGES = {"c", "cpp", "python", "sh", "cmake", "toml"}
TIMEOUT_S = 200
pytestmark = pytest.mark.timeout(900)  # the first test makes the installations


@dataclass
class Block:
    location: str
    language: str
    code: str
    rule: str | None = None  # of a comment `test`
    reason: str | None = None  # of a comment `no test`
    in_checkout: bool = False
    files: dict[str, str] = field(default_factory=dict)  # of the page

    @property
    def expected_output(self) -> list[str]:
        return re.findall(r'"([^"]*)"', self.rule or "")

    @property
    def ranks(self) -> int:
        match = re.search(r"\branks (\d+)", self.rule or "")
        return int(match[1]) if match else 1

    @property
    def file(self) -> str | None:
        match = re.search(r"\bfile (\S+)", self.rule or "")
        return match[1] if match else None


def read_blocks(document: Path) -> list[Block]:
    blocks = []
    text = document.read_text()
    is_for_contributors = document.name == "CONTRIBUTING.md" or "internals" in document.parts
    for match in FENCE.finditer(text):
        before, has_place, after = (match["hidden"] or "").partition("...\n")
        rule = match["rule"].strip() if match["kind"] == "test" else None
        blocks.append(
            Block(
                location=f"{document.relative_to(ROOT)}:{text.count(chr(10), 0, match.start('code'))}",
                language=match["language"],
                code=before + match["code"] + (after if has_place else ""),
                rule=rule,
                reason=match["rule"].strip() if match["kind"] == "no test" else None,
                in_checkout=is_for_contributors or "checkout" in (rule or "").split(),
            )
        )
    files = {block.file: block.code for block in blocks if block.file}
    for block in blocks:
        block.files = files
    return [block for block in blocks if not block.language.startswith("{")]  # directives of the site


BLOCKS = [block for document in DOCUMENTS for block in read_blocks(document)]
RUNNABLE = [
    block
    for block in BLOCKS
    if block.language == "toml" or (block.rule is not None and not block.file and not block.reason)
]


@dataclass
class Reader:
    """Runs commands as a reader does who has installed Isthmus."""

    environment: Path
    prefix: Path
    home: Path
    sycl_header: Path

    def variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self.environment / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "COLUMNS": "110",
            "VIRTUAL_ENV": str(self.environment),
            "PREFIX": str(self.prefix),
            "CC": "gcc",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more start processes, each of which imports PyTorch
        }

    def run(self, command: list[str], folder: Path, variables: dict[str, str] | None = None) -> str:
        completed = subprocess.run(
            command,
            cwd=folder,
            env=variables or self.variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        output = completed.stdout + completed.stderr
        assert completed.returncode == 0, f"{shlex.join(command)}: exit status {completed.returncode}\n{output}"
        return output

    def run_shell(self, code: str, folder: Path, variables: dict[str, str] | None = None) -> str:
        return self.run(["bash", "-euo", "pipefail", "-c", code], folder, variables)


@pytest.fixture(scope="module")
def reader(environment: Path, prefix: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(environment, prefix, home, tmp_path_factory.mktemp("sycl") / "precompiled.hpp")


# The commands of the tutorials (docs/start/c.md, docs/start/sycl.md).
COMPILE_C = (
    "export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig; "
    "gcc -std=c99 -Wall -Wextra -Werror program.c -o program $(pkg-config --cflags --libs isthmus) "
    "-Wl,-rpath,$(pkg-config --variable=libdir isthmus) && ./program"
)
SYCL_FLAGS = "-std=c++20 -DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING"
COMPILE_CPP = (
    "include=$(python -m isthmus.layout include) lib=$(python -m isthmus.layout lib) venv=$VIRTUAL_ENV; "
    f"g++ {SYCL_FLAGS} {{precompiled}} -Wall -Wextra -Werror program.cpp -o program "
    '-I"$include" -isystem "$venv/include" -isystem "$venv/include/sycl" '
    '"$lib/libisthmus.so.0" -L"$venv/lib" -Wl,-rpath,"$lib:$venv/lib" -lmpi -lsycl '
    "&& isthmus run -n {ranks} ./program"
)
CMAKE_PROJECT = "cmake_minimum_required(VERSION 3.22)\nproject(reader LANGUAGES C CXX)\n"


def precompiled_options(reader: Reader) -> str:
    """The options for a precompiled <sycl/sycl.hpp>, which takes most of the time to compile a program."""
    if not reader.sycl_header.exists():
        reader.sycl_header.write_text("#include <sycl/sycl.hpp>\n")
        include = f"-isystem {reader.environment}/include -isystem {reader.environment}/include/sycl"
        reader.run_shell(f"g++ {SYCL_FLAGS} {include} {reader.sycl_header}", reader.sycl_header.parent)
    return f"-Winvalid-pch -include {reader.sycl_header}"


def run_block(block: Block, reader: Reader, folder: Path) -> str:
    for name, text in block.files.items():
        (folder / name).write_text(text)
    if block.language == "c":
        (folder / "program.c").write_text(block.code)
        return reader.run_shell(COMPILE_C, folder)
    if block.language == "cpp":
        (folder / "program.cpp").write_text(block.code)
        precompiled = precompiled_options(reader) if "<isthmus/sycl" in block.code else ""
        return reader.run_shell(COMPILE_CPP.format(ranks=block.ranks, precompiled=precompiled), folder)
    if block.language == "python":
        (folder / "program.py").write_text(block.code)
        return reader.run(["python", "program.py"], folder)
    if block.language == "cmake":
        (folder / "CMakeLists.txt").write_text(CMAKE_PROJECT + block.code)
        return reader.run_shell('cmake -B b -Disthmus_ROOT="$PREFIX" && cmake --build b', folder)
    if block.language == "toml":
        (folder / "isthmus.toml").write_text(block.code)
        return reader.run_shell("ISTHMUS_CONFIG=isthmus.toml isthmus explain barrier --ranks 2", folder)
    if block.in_checkout:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "COLUMNS": "110", "PREFIX": str(reader.prefix)}
        return reader.run_shell(block.code, ROOT, variables)
    return reader.run_shell(block.code, folder)


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.location)
def test_block(block: Block, reader: Reader, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if any("import torch" in code for code in (block.code, *block.files.values())):
        request.getfixturevalue("first_torch_import")
    output = run_block(block, reader, tmp_path)
    for text in block.expected_output:
        assert text in output, f"{block.location}: {text!r} is not in\n{output}"


def test_elastic_example_is_that_of_the_checkout() -> None:
    example = (ROOT / "examples/elastic/ddp.py").read_text().split('"""')[2].strip()
    assert example in (ROOT / "docs/guide/failures.md").read_text()


def test_every_block_runs_or_has_a_reason() -> None:
    problems = []
    for block in BLOCKS:
        if block.reason is not None and block.reason not in REASONS:
            problems.append(f"{block.location}: the reason {block.reason!r} is none of {sorted(REASONS)}")
        elif block.reason is None and block.language not in {*LANGUAGES, "text"}:
            problems.append(
                f"{block.location}: the language {block.language!r} is none of {sorted(LANGUAGES)}, text"
            )
        elif block.rule is None and block.reason is None and block.language not in ("toml", "text"):
            problems.append(f"{block.location}: needs a comment <!-- test: ... --> or <!-- no test: ... -->")
        elif block.file and not any(
            block.file in other.code for other in RUNNABLE if block.files == other.files and other is not block
        ):
            problems.append(f"{block.location}: no block of the page uses {block.file}")
    assert not problems, "\n".join(problems)
