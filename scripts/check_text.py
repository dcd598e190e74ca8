#!/usr/bin/env python3
"""Checks text that no formatter looks at: words that must not be committed, and benchmark records."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    re.compile(r"\b(TODO|FIXME|XXX)\b"): "unfinished work belongs into an issue",
    re.compile(r"(?<![\w.$}])/(work|root|home)/\w"): "a path of one machine",
    re.compile(r"[ \t]+$"): "blanks at the end of a line",
}
# Files that speak about the words themselves, or that a tool wrote.
EXEMPT = {"scripts/check_text.py", "LICENSE"}
BINARY = (".png", ".pdf", ".gguf", ".npz")


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in listing.stdout.splitlines() if (ROOT / path).is_file()]


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


def check_records() -> list[str]:
    """Every file of bench/results must be a valid report (python/isthmus/records.py)."""
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
    problems = [problem for path in files for problem in check_words(path)] + check_records()
    print("\n".join(problems) if problems else f"text: {len(files)} files keep the rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
