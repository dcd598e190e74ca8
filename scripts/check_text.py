#!/usr/bin/env python3
"""Checks what formatters do not: forbidden words, links between pages, benchmark records."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    re.compile(r"\b(TODO|FIXME|XXX)\b"): "open an issue for unfinished work",
    re.compile(r"(?<![\w.$}])/(work|root|home)/\w"): "a path of one machine",
    re.compile(r"[ \t]+$"): "trailing whitespace",
}
# Files that contain the words as data, or that a tool generated.
EXEMPT = {"scripts/check_text.py", "LICENSE"}
BINARY = (".png", ".pdf", ".gguf", ".npz")
CORPUS = "tests/fuzz/corpus/"  # inputs that need not be text

LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGE_NAME = re.compile(r"(?<![\w/.*{}<>-])((?:docs/(?:\w+/){0,2})?[\w-]+\.md)\b")
SOURCE_NAME = re.compile(r"`((?:src|tests|bench|python|scripts|include|examples|cmake|apps)/[\w./*-]+)`")
# <date>-<machine>-<topic>.json. The commit in a record is written by the benchmark, never by hand.
RECORD_NAME = re.compile(r"\d{4}-\d\d-\d\d-(?P<what>[a-z0-9]+-[a-z0-9_]+)\.json")
COMMIT = re.compile(r"[0-9a-f]{7,40}(-dirty)?")
MAX_RECORDS = 45


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [path for path in listing.stdout.splitlines() if not path.startswith(CORPUS)]
    return [path for path in paths if (ROOT / path).is_file()]


def check_words(path: str) -> list[str]:
    if path in EXEMPT or path.endswith(BINARY):
        return []
    problems = []
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        for word, why in FORBIDDEN.items():
            match = word.search(line)
            if match:
                problems.append(f"{path}:{number}: {match.group(0)!r}: {why}")
    return problems


def prose(path: str) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", (ROOT / path).read_text(), flags=re.M | re.S)


def anchors(path: str) -> set[str]:
    """The anchors of a page, in GitHub's spelling."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def check_page(path: str) -> list[str]:
    """Checks that the relative links of a page and the source files that it names exist."""
    text = prose(path)
    problems = []
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / path).parent / name if name else ROOT / path
        if not file.exists():
            problems.append(f"{path}: links to {target}, which does not exist")
        elif anchor and file.suffix == ".md" and anchor not in anchors(str(file.resolve().relative_to(ROOT))):
            problems.append(f"{path}: links to {target}, but that page has no such heading")
    if path.startswith("docs/start/") and "known_limits.md" not in text:
        problems.append(f"{path}: a start page must link to docs/guide/known_limits.md")
    if not path.startswith("docs/internals/design/"):  # design notes describe earlier states
        missing_files = [name for name in SOURCE_NAME.findall(text) if not any(ROOT.glob(name))]
        problems += [f"{path}: names {name}, which does not exist" for name in missing_files]
    return problems


def check_index(files: list[str]) -> list[str]:
    """Checks that docs/index.md lists every page."""
    listed = (ROOT / "docs" / "index.md").read_text().splitlines()
    pages = [path[5:-3] for path in files if re.fullmatch(r"docs/(?!internals/design/|index).*\.md", path)]
    return [f"docs/{page}.md: docs/index.md does not list it" for page in pages if page not in listed]


def check_page_names(path: str) -> list[str]:
    """Checks that every page named in a source or a page exists."""
    if path in EXEMPT or path.endswith(BINARY) or path.startswith("tests/python/"):
        return []
    problems = []
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        for name in PAGE_NAME.findall(line):
            places = [ROOT / name, ROOT / "docs" / name, (ROOT / path).parent / name]
            if not any(place.exists() for place in places):
                problems.append(f"{path}:{number}: names {name}, which does not exist")
    return problems


def check_record_files(files: list[str]) -> list[str]:
    """Checks that bench/results holds one record per topic and machine, at most 45, each cited by a page."""
    cited = "".join((ROOT / path).read_text() for path in files if path.endswith(".md"))
    problems, known = [], {}
    records = sorted((ROOT / "bench" / "results").glob("*"))
    if len(records) > MAX_RECORDS:
        problems.append(f"bench/results: {len(records)} records; at most {MAX_RECORDS}")
    for file in records:
        place = f"bench/results/{file.name}"
        name = RECORD_NAME.fullmatch(file.name)
        if not name:
            problems.append(f"{place}: the name must be <date>-<machine>-<topic>.json")
            continue
        if f"results/{file.name})" not in cited:
            problems.append(f"{place}: no page links to this record; remove it")
        if name["what"] in known:
            problems.append(
                f"{place}: {known[name['what']]} has the same machine and topic; remove the older record"
            )
        known[name["what"]] = file.name
        commit = json.loads(file.read_text()).get("commit", "")
        if not COMMIT.fullmatch(commit):
            problems.append(f"{place}: the commit must be a Git hash, not {commit!r}")
    return problems


def check_records() -> list[str]:
    """Validates the files of bench/results with python/isthmus/records.py."""
    source = ROOT / "python" / "isthmus" / "records.py"
    files = sorted((ROOT / "bench" / "results").glob("*.json"))
    if not files:
        return []
    spec = importlib.util.spec_from_file_location("records", source)
    records = importlib.util.module_from_spec(spec)
    sys.modules["records"] = records
    spec.loader.exec_module(records)
    problems = []
    for file in files:
        try:
            records.Report.model_validate_json(file.read_text())
        except ValueError as failure:
            problems.append(f"{file.relative_to(ROOT)}: {failure}")
    return problems


def main() -> int:
    files = tracked()
    problems = [problem for path in files for problem in check_words(path) + check_page_names(path)]
    problems += [problem for path in files if path.endswith(".md") for problem in check_page(path)]
    problems += check_index(files)
    problems += check_record_files(files) + check_records()
    print("\n".join(problems) if problems else f"text: {len(files)} files keep the rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
