#!/usr/bin/env python3
"""Checks who includes whom against the table "Layers" of docs/architecture.md, which is the rule itself.

A row names a component, its files (glob patterns; the first row that matches a file wins), the components
whose headers it may include, and the foreign headers that it may name. Everything else is an error.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "architecture.md"
SOURCES = ("*.h", "*.hpp", "*.c", "*.cpp", "*.cu", "*.cuh", "*.hip", "*.def")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# Headers that tie a file to one vendor or programming model.
FOREIGN = {
    "nccl": ("nccl*.h", "rccl*.h", "*/rccl.h"),
    "oneccl": ("oneapi/ccl*",),
    "cuda": ("cuda*.h", "cuda/*", "cublas*.h", "cub/*", "nvml.h", "nvrtc.h", "nvToolsExt.h"),
    "hip": ("hip/*", "hipblas*"),
    "level_zero": ("ze_*.h", "level_zero/*"),
    "umf": ("umf.h", "umf/*"),
    "mpi": ("mpi.h", "mpi-ext.h"),
    "sycl": ("sycl*", "CL/sycl*"),
    "torch": ("torch/*", "ATen/*", "c10/*"),
}


@dataclass
class Component:
    name: str
    files: list[str]
    may_include: list[str]
    may_name: list[str]

    def owns(self, path: str) -> bool:
        return any(fnmatch.fnmatch(path, pattern) for pattern in self.files)


def read_table() -> list[Component]:
    """The rows of the first table after the heading "Layers"."""
    section = DOCUMENT.read_text().split("\n## Layers\n", 1)
    if len(section) != 2:
        sys.exit(f"{DOCUMENT}: no heading 'Layers'")
    rows = []
    for line in section[1].splitlines():
        if line.startswith("## "):
            break
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or cells[0] == "component" or set(cells[0]) <= {"-", ":"}:
            continue
        words = [re.findall(r"[\w./*+-]+", cell.replace("`", " ")) for cell in cells[1:4]]
        rows.append(
            Component(cells[0].strip("`"), words[0], *([] if w == ["nothing"] else w for w in words[1:]))
        )
    names = {row.name for row in rows} | {"all"}
    for row in rows:
        for name in row.may_include:
            if name not in names:
                sys.exit(f"{DOCUMENT}: component {row.name} may include {name!r}, which is no component")
        for name in row.may_name:
            if name not in FOREIGN:
                sys.exit(f"{DOCUMENT}: {row.name} may name {name!r}; known: {', '.join(FOREIGN)}")
    return rows


def tracked_sources() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", *SOURCES], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [path for path in listing.stdout.splitlines() if (ROOT / path).is_file()]


def resolve(header: str, path: str, known: set[str]) -> str | None:
    """The file of this repository that an #include means, or None."""
    for folder in (str(Path(path).parent), "include", "src", "tests"):
        candidate = str(Path(folder) / header)
        if candidate in known:
            return candidate
    return None


def check_file(path: str, components: list[Component], known: set[str]) -> list[str]:
    def owner(name: str) -> Component | None:
        return next((component for component in components if component.owns(name)), None)

    own = owner(path)
    if own is None:
        return [f"{path}: belongs to no component of docs/architecture.md"]
    problems = []
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        target = resolve(header, path, known)
        if target is None:
            for name, patterns in FOREIGN.items():
                if any(fnmatch.fnmatch(header, pattern) for pattern in patterns) and name not in own.may_name:
                    problems.append(f"{path}:{number}: {own.name} must not name <{header}> ({name})")
            continue
        other = owner(target)
        allowed = {own.name, *own.may_include}
        if other is not None and other.name not in allowed and "all" not in allowed:
            problems.append(f"{path}:{number}: {own.name} must not include {target} of {other.name}")
    return problems


def main() -> int:
    components = read_table()
    files = tracked_sources()
    problems = [problem for path in files for problem in check_file(path, components, set(files))]
    for component in components:
        if not any(component.owns(path) for path in files):
            problems.append(f"docs/architecture.md: component {component.name} owns no file")
    print("\n".join(problems) if problems else f"layers: {len(files)} files keep the rules")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
