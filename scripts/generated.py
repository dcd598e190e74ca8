"""Files that scripts generate from bench/results: find the records, and write or check the files."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def newest(topic: str) -> Path:
    """Returns the newest record file of a machine and topic, such as h200x2-p2p."""
    paths = sorted(RESULTS.glob(f"*-{topic}.json"))
    if not paths:
        sys.exit(f"scripts/{Path(sys.argv[0]).name}: bench/results has no record of {topic}")
    return paths[-1]


def write_or_check(texts: dict[Path, str], success: str) -> int:
    """Writes the files, or with `--check` compares them and prints `success`. Returns the exit code."""
    if "--check" not in sys.argv[1:]:
        for file, text in texts.items():
            file.write_text(text)
        return 0
    for file, text in texts.items():
        if not file.is_file() or file.read_text() != text:
            script = f"scripts/{Path(sys.argv[0]).name}"
            print(f"{file.relative_to(ROOT)} does not match the records; run {script}")
            return 1
    print(success)
    return 0
