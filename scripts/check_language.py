#!/usr/bin/env python3
"""Checks the language of comments, docstrings, pages, test names and commit subjects.

The project is written in plain American English. This checker refuses phrases that technical writers avoid,
comment lines that hold only one or two words of a paragraph, test names over 50 letters, and commit subjects
that are not `area: imperative`. `scripts/check_language.py --summary` prints the number of hits per folder.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from pygments.lexer import Lexer
from pygments.lexers import BashLexer, CLexer, CMakeLexer, CppLexer, MakefileLexer, PythonLexer, TOMLLexer
from pygments.token import Comment, String

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 112

# Phrase -> advice. A pattern that starts with ^ applies to the beginning of a sentence.
PHRASES = {
    r"^What\b(?![^.]*\?)": "name the thing, then say what it does",
    r"^(Who|Whom|Whose|Whoever)\b(?![^.]*\?)": "name the rank or the caller",
    r"^(Of|For who|To whom|By what|From who)\b": "start with the subject",
    r"^The same\b": "say what is the same",
    r"\b(?i:nobody|somebody|everybody|whoever|whom)\b": "write 'no rank', 'a rank', 'every rank'",
    r"\b(?i:tells?|told|hears?|heard|heeds?|heeded|learnt|says so|said so)\b": "write 'report' or 'notify'",
    r"\b(?i:beside|anew|alike|thereof|therein|hereby|likewise)\b": "write 'next to', 'again', 'also'",
    r"\b(?i:behind (each|it|them|the|a|NCCL|all|one))\b": "write 'after' or 'below'",
    r"(?i:, too\b)": "write 'also'",
    r"\b(?i:in vain|for ever|by turns|in turns|forth and back)\b": "describe the schedule or the outcome",
    r"\b(?i:any more|no more than that|as ever)\b": "write 'no longer'",
    r"\b(?i:mend|mended|mends|mending)\b": "write 'fix'",
    r"\b(?i:as far as)\b": "write 'where' or 'if'",
    r"\b(?i:goes on|go on|went on|going on)\b": "write 'continue'",
}
# Sentences that contain one of these phrases correctly: a distinctive part of each.
ALLOWED: tuple[str, ...] = ()

LEXERS: dict[str, type[Lexer]] = {
    ".c": CLexer,
    ".cmake": CMakeLexer,
    ".cpp": CppLexer,
    ".cu": CppLexer,
    ".cuh": CppLexer,
    ".def": CppLexer,
    ".h": CppLexer,
    ".hpp": CppLexer,
    ".py": PythonLexer,
    ".toml": TOMLLexer,
}
NAMED = {"CMakeLists.txt": CMakeLexer, "Makefile": MakefileLexer}
EXEMPT = {"scripts/check_language.py", "LICENSE"}
GENERATED = re.compile(r"tests/fuzz/corpus/")
# Commits before this one predate the rule.
FIRST_COMMIT = "1d649eb8da3ab411aa839a014681129f932c98dd"
SUBJECT = re.compile(r"[a-z][a-z0-9_/., -]*: [a-z]")
SUBJECT_LETTERS = 72
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\(\w+,\s*(\w+)\)|^ *def (test_\w+)", re.M)
TEST_NAME_LETTERS = 50


@dataclass
class Line:
    number: int
    text: str
    columns: int = 0  # width of the source line; 0 if the line cannot be wrapped


Block = list[Line]


def lexer_for(path: Path) -> Lexer | None:
    kind = NAMED.get(path.name) or LEXERS.get(path.suffix)
    if kind is None and not path.suffix:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline()
        if first.startswith("#!"):
            kind = PythonLexer if "python" in first else BashLexer
    return kind(stripnl=False, ensurenl=False) if kind else None


def comment_text(line: str) -> str:
    return re.sub(r"^\s*(//+[/!<]*|/\*+|\*+/|\*|#+)\s?|\s*\*/\s*$", "", line)


def source_blocks(path: Path, lexer: Lexer) -> Iterator[Block]:
    """Comments and docstrings. Comment lines that follow each other form one block."""
    text = path.read_text(encoding="utf-8", errors="replace")
    source = text.splitlines()
    run: Block = []
    number, counted = 1, 0
    for offset, kind, value in lexer.get_tokens_unprocessed(text):
        number += text.count("\n", counted, offset)
        counted = offset
        if kind in String.Doc:
            yield [Line(number + i, line.strip(" \t\"'")) for i, line in enumerate(value.splitlines())]
        if kind not in Comment or kind in (Comment.Preproc, Comment.PreprocFile, Comment.Hashbang):
            continue
        lines = [Line(number + i, comment_text(line)) for i, line in enumerate(value.rstrip("\n").splitlines())]
        alone = not source[number - 1][: offset - text.rfind("\n", 0, offset) - 1].strip()
        if alone:
            for line in lines:
                line.columns = len(source[line.number - 1])
        if run and (not alone or number != run[-1].number + 1):
            yield run
            run = []
        run += lines
        if not alone:
            yield run
            run = []
    if run:
        yield run


def page_blocks(path: Path) -> Iterator[Block]:
    """Paragraphs, list items and table cells of a Markdown page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    first = 1
    for token in tokens:
        first = token.map[0] + 1 if token.map else first
        if token.type == "inline":
            children = token.children or []
            words = "".join(
                "CODE" if c.type == "code_inline" else c.content or "\n" * (c.type == "softbreak")
                for c in children
            )
            yield [Line(first + i, line) for i, line in enumerate(words.split("\n"))]


def blocks(path: Path) -> Iterator[Block]:
    if path.suffix == ".md":
        yield from page_blocks(path)
    elif lexer := lexer_for(path):
        yield from source_blocks(path, lexer)


def sentences(block: Block) -> Iterator[tuple[int, str]]:
    """The sentences of a block, each with the number of the line on which it starts."""
    text, numbers = "", []
    for line in block:
        words = re.sub(r"`[^`]*`", "CODE", line.text).strip()
        numbers += [line.number] * (len(words) + 1)
        text += words + " "
    start = 0
    for part in re.split(r"((?<=[.:;!?])\s+(?=[A-Z`(])|(?<=[;:])\s+)", text):
        if len(part.split()) >= 4:
            yield numbers[start], part.strip()
        start += len(part)


def find_phrases(sentence: str) -> list[str]:
    if any(part in sentence for part in ALLOWED):
        return []
    found = ((re.search(pattern, sentence), advice) for pattern, advice in PHRASES.items())
    return [f"{match.group(0)!r}: {advice}" for match, advice in found if match]


def find_orphans(block: Block) -> list[int]:
    """Lines of one or two words that belong to the line before or after them."""
    orphans = []
    followers = [*block[2:], Line(0, "")]
    for before, line, after in zip(block, block[1:], followers, strict=False):
        text = line.text.strip()
        count = len(text.split())
        is_prose = re.fullmatch(r"[A-Za-z`(]\S*( \S+)?", text) and len(before.text.split()) > 6
        fits = before.columns + 1 + len(text) <= COLUMNS
        continues = after.text[:1].islower() and not text.endswith((".", ":"))
        if line.columns and before.columns and is_prose and (count == 1 or fits or continues):
            orphans.append(line.number)
    return orphans


def find_long_test_names(name: str) -> list[str]:
    if not name.startswith("tests/") or Path(name).suffix not in (".cpp", ".py"):
        return []
    found = (match[1] or match[2] for match in TEST_NAME.finditer((ROOT / name).read_text(encoding="utf-8")))
    return [
        f"{name}: test name {test} has {len(test)} letters; at most {TEST_NAME_LETTERS}"
        for test in found
        if len(test) > TEST_NAME_LETTERS
    ]


def check_file(name: str) -> tuple[list[str], int]:
    """The problems of a file and the number of its sentences."""
    problems, count = find_long_test_names(name), 0
    for block in blocks(ROOT / name):
        for number, sentence in sentences(block):
            count += 1
            problems += [f"{name}:{number}: {phrase}: {sentence[:120]}" for phrase in find_phrases(sentence)]
        problems += [
            f"{name}:{number}: one or two words on a line of a comment" for number in find_orphans(block)
        ]
    return problems, count


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def check_subjects() -> list[str]:
    """The subjects of the commits since FIRST_COMMIT, or of the last one in a shallow clone."""
    known = subprocess.run(["git", "cat-file", "-e", FIRST_COMMIT], cwd=ROOT, check=False, capture_output=True)
    commits = [f"{FIRST_COMMIT}..HEAD"] if known.returncode == 0 else ["-1"]
    problems = []
    for line in git("log", "--no-merges", "--format=%h %s", *commits).splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT_LETTERS:
            problems.append(
                f"commit {commit}: the subject has {len(subject)} letters; at most {SUBJECT_LETTERS}"
            )
        if not SUBJECT.match(subject):
            problems.append(f"commit {commit}: write the subject as 'area: imperative', not {subject!r}")
    return problems


def tracked_files() -> list[str]:
    names = git("ls-files").splitlines()
    return [n for n in names if n not in EXEMPT and not GENERATED.match(n) and (ROOT / n).is_file()]


def print_summary(hits: Counter[str], total: Counter[str]) -> None:
    for folder in sorted(total, key=lambda name: -hits[name] / max(1, total[name])):
        rate = 1000 * hits[folder] / max(1, total[folder])
        print(f"{rate:7.1f} per 1,000  {hits[folder]:5} of {total[folder]:6} sentences  {folder}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files or folders; default: the entire repository")
    parser.add_argument("--summary", action="store_true", help="print the number of hits per folder")
    arguments = parser.parse_args()
    names = [n for n in tracked_files() if not arguments.paths or n.startswith(tuple(arguments.paths))]
    problems, hits, total = [], Counter(), Counter()
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(check_file, names, chunksize=16))
    for name, (found, count) in zip(names, results, strict=True):
        folder = "/".join(Path(name).parts[:2][: max(1, len(Path(name).parts) - 1)])
        problems += found
        hits[folder] += len(found)
        total[folder] += count
    if arguments.summary:
        print_summary(hits, total)
    else:
        problems += [] if arguments.paths else check_subjects()
        print(*problems, sep="\n", end="\n" if problems else "")
    rate = 1000 * hits.total() / max(1, total.total())
    counts = f"{len(names)} files, {total.total()} sentences, {len(problems)} problems"
    print(f"language: {counts} ({rate:.1f} per 1,000)")
    return 1 if problems and not arguments.summary else 0


if __name__ == "__main__":
    sys.exit(main())
