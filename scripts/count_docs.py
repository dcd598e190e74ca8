#!/usr/bin/env python3
"""How much of the public headers is documentation: lines with a comment among lines that are not blank."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    documented, lines = Counter(), Counter()
    for file in sorted((ROOT / "include").rglob("*.h*")):
        text = [line for line in file.read_text().splitlines() if line.strip()]
        folder = file.parent.relative_to(ROOT).as_posix()
        # The C ABI's headers lie beside the C++ front ends.
        names = [f"{folder}, C"] if file.suffix == ".h" else [folder, "C++ front ends"]
        for name in names:
            lines[name] += len(text)
            documented[name] += sum("//" in line for line in text)
    shares = [f"{name} {100 * documented[name] / lines[name]:.0f} %" for name in sorted(lines)]
    print("docs: lines with a comment: " + "; ".join(shares))
    return 0


if __name__ == "__main__":
    sys.exit(main())
