#!/usr/bin/env python3
"""Checks all includes against the table "Layers" of docs/internals/architecture.md, which defines the rules.

A row names a component, its files (glob patterns; the first row that matches a file wins), the components whose
headers it may include, and the foreign headers that it may use. Everything else is an error. In addition, each
folder of src has one row, components do not form include cycles, every ISTHMUS_API function of the public
headers is defined in src/api, no string in src/core or src/selection names a backend, and only
the homes of HOMES use their mechanisms.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/internals/architecture.md"
SOURCES = ("*.h", "*.hpp", "*.c", "*.cpp", "*.cu", "*.cuh", "*.hip", "*.def")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
# Headers that tie a file to a vendor or a programming model.
FOREIGN = {
    "nccl": ("nccl*.h", "rccl*.h", "*/rccl.h"),
    "oneccl": ("oneapi/ccl*",),
    "cuda": ("cuda*.h", "cuda/*", "cublas*.h", "cub/*", "nvml.h", "nvrtc.h", "nvToolsExt.h"),
    "hip": ("hip/*", "hipblas*"),
    "level_zero": ("ze_*.h", "level_zero/*"),
    "umf": ("umf.h", "umf/*"),
    "mpi": ("mpi.h", "mpi-ext.h"),
    "ucx": ("ucp/*", "ucs/*", "uct/*"),
    "sycl": ("sycl*", "CL/sycl*"),
    "sodium": ("sodium.h", "sodium/*"),
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
                sys.exit(f"{DOCUMENT}: component {row.name} may include {name!r}, which is not a component")
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
    """The file of this repository that an #include refers to, or None."""
    for folder in (str(Path(path).parent), "include", "src", "tests"):
        candidate = str(Path(folder) / header)
        if candidate in known:
            return candidate
    return None


def find_owner(path: str, components: list[Component]) -> Component | None:
    return next((component for component in components if component.owns(path)), None)


def includes_of(path: str, known: set[str]) -> list[str]:
    """The files of this repository that a file includes."""
    headers = (INCLUDE.match(line) for line in (ROOT / path).read_text().splitlines())
    found = (resolve(match.group(1), path, known) for match in headers if match)
    return [target for target in found if target is not None]


def check_folders(components: list[Component]) -> list[str]:
    """Checks that rows and folders of src correspond one to one and that no folder contains another."""
    problems = []
    folders: list[str] = []
    for component in components:
        source_patterns = [pattern for pattern in component.files if pattern.startswith("src/")]
        if source_patterns and (
            component.files != source_patterns
            or len(source_patterns) != 1
            or not re.fullmatch(r"[\w/]+/\*", source_patterns[0])
        ):
            problems.append(f"{component.name}: a component of src must be one folder, written src/folder/*")
        folders += (pattern.removesuffix("*") for pattern in source_patterns)
    for folder in folders:
        if any(folder.startswith(other) for other in folders if other != folder) or folders.count(folder) > 1:
            problems.append(f"{folder}: has two rows in the table")
    return [f"docs/internals/architecture.md: {problem}" for problem in problems]


def find_cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The sets of components that reach each other through includes."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        pending = [start]
        while pending:
            for other in edges.get(pending.pop(), set()) - seen:
                seen.add(other)
                pending.append(other)
        return seen

    reach = {name: reached(name) for name in edges}
    cycles = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, set())))
        for name in edges
        if name in reach[name]
    }
    return [list(cycle) for cycle in sorted(cycles)]


def count_cycles(files: list[str], components: list[Component]) -> list[list[str]]:
    known = set(files)
    edges: dict[str, set[str]] = {}
    for path in files:
        own = find_owner(path, components)
        for target in includes_of(path, known):
            other = find_owner(target, components)
            if own and other and own.name != other.name:
                edges.setdefault(own.name, set()).add(other.name)
    return find_cycles(edges)


DECLARED = re.compile(r"ISTHMUS_API\b[^;(]*?\b(isthmus_\w+)\s*\(")
DEFINED = re.compile(
    r"^(?:\[\[[^\]]*\]\] )?\w[\w:*&<> ]*?\b(isthmus_\w+)\s*\([^;{}]*\)\s*(?:noexcept\s*)?\{", re.MULTILINE
)


def check_entry_points(files: list[str]) -> list[str]:
    """Checks that every function of the C ABI is defined in src/api."""
    declared = {
        name
        for path in files
        if fnmatch.fnmatch(path, "include/isthmus/*.h")
        for name in DECLARED.findall((ROOT / path).read_text())
    }
    places: dict[str, list[str]] = {name: [] for name in declared}
    for path in files:
        if path.startswith("src/") and path.endswith(".cpp"):
            for name in set(DEFINED.findall((ROOT / path).read_text())) & declared:
                places[name].append(path)
    problems = [f"{name}: defined nowhere in src" for name, definitions in places.items() if not definitions]
    for name, definitions in places.items():
        other_files = [path for path in definitions if not path.startswith("src/api/")]
        problems += (f"{path}: defines {name}; move the entry point to src/api" for path in other_files)
    return problems


# A string or character literal, or a comment.
LITERAL = re.compile(
    r'"((?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/|^\s*#\s*include[^\n]*', re.S | re.M
)
WITHOUT_NAMES = ("src/core/", "src/selection/")
# These names also mean a platform or a programming model. They count as backend names only if they are the
# whole string, or in "backend.NAME" and "NAME:algorithm".
ORDINARY = ("shm", "mpi")


def backend_names() -> set[str]:
    """The names of the backend folders and those that their options.toml files declare."""
    names = set()
    for file in ROOT.glob("src/backends/*/options.toml"):
        names.add(file.parent.name)
        for listed in re.findall(r"^sections = \[(.*)\]", file.read_text(), re.M):
            names.update(re.findall(r'"(\w+)"', listed))
    return names


def check_backend_names(files: list[str]) -> list[str]:
    """Checks that core and selection name no backend; backends belong in their folders or in defaults.toml."""
    names = backend_names()
    word = re.compile(rf"\b(?:{'|'.join(sorted(names - set(ORDINARY)))})\b")
    ordinary = "|".join(ORDINARY)
    phrase = re.compile(rf"^(?:{ordinary})$|\bbackend\.(?:{ordinary})\b|\b(?:{ordinary}):\w")
    problems = []
    for path in files:
        if not path.startswith(WITHOUT_NAMES):
            continue
        text = (ROOT / path).read_text()
        for match in LITERAL.finditer(text):
            literal = match.group(1)
            if literal is not None and (word.search(literal) or phrase.search(literal)):
                line = text.count("\n", 0, match.start()) + 1
                problems.append(
                    f'{path}:{line}: "{literal}" names a backend; move it to the folder of that backend'
                )
    return problems


@dataclass
class Home:
    """A mechanism that only some files may use. The table "One home per concern" of the document lists them."""

    mechanism: re.Pattern
    files: dict[str, str]  # path or folder: the reason
    advice: str


HOMES = [
    Home(
        re.compile(
            r"\b(?:sleep_for|u?sleep|(?:clock_)?nanosleep|sched_yield|pthread_yield)\s*\("
            r"|this_thread::(?:sleep_|yield)"
        ),
        {
            "src/failure/wait.hpp": "the policy",
            "python/bindings/": "the bindings use only the public C ABI",
            "include/isthmus/mpi.hpp": "programs do not include src",
        },
        "use poll_until or backoff of src/failure/wait.hpp",
    ),
    Home(
        re.compile(r"\bdlm?open\s*\("),
        {
            "src/base/dynamic_library.cpp": "the loader",
            "src/core/plugin.cpp": "plug-ins",
            "src/frontends/preload/engine_loader.hpp": "preloaded libraries must load without the core",
        },
        "use dynamic_library of src/base, or engine_loader.hpp in a preloaded library",
    ),
    Home(
        re.compile(r"\b(?:secure_)?getenv\s*\("),
        {"src/base/trust.hpp": "environment_variable", "include/": "programs do not include src"},
        "use environment_variable of src/base/trust.hpp, which ignores the variables of setuid programs",
    ),
    Home(
        re.compile(r'"libcuda\.so'),
        {"src/device/gpu/functions.hpp": "the search for the vendors' libraries"},
        "use library_search of src/device/gpu/functions.hpp",
    ),
    # The standard library, or a library that is linked anyway, has these.
    Home(
        re.compile(r"\.empty\(\) \? \"\" : \"[,;] \""),
        {
            "src/frontends/": "preloaded libraries do not link fmt",
            "src/backends/copy_engine/copy_engine_state.cpp": "a list of views",
            "src/failure/health.cpp": "two lists with one separator",
            "src/memory/pool/device_memory.cpp": "grows over several calls",
        },
        "collect the items and use fmt::join, or format_list of src/base/text.hpp",
    ),
    Home(
        re.compile(r"\brfind\([^()]*, 0\)|\.compare\(0,|\.substr\(0, [^()]*\) [!=]= "),
        {},
        "use starts_with or ends_with",
    ),
    Home(
        re.compile(r"\bs[tn]*printf\s*\("),
        {
            "src/base/trust.cpp": "plug-ins compile it without fmt",
            "src/base/characters.hpp": "preloaded libraries do not link fmt",
            "src/backends/p2p/tensor_engine.cpp": "fills the buffer of a C interface",
            "src/operators/tensor_parallel/host_engine.cpp": "fills the buffer of a C interface",
            "src/frontends/": "preloaded libraries do not link fmt",
            "include/": "programs do not need fmt",
            "python/": "the bindings use only the public C ABI",
        },
        "use fmt::format",
    ),
    Home(
        re.compile(r"\b(?:strto(?:l|ll|ul|ull|d|f)|ato[ifl]+|sto(?:i|l|ul|ll|ull|d|f))\s*\("),
        {"src/frontends/": "an invalid value counts as the default"},
        "use std::from_chars and report what cannot be parsed",
    ),
    Home(re.compile(r"\benable_if"), {}, "use requires"),
    Home(
        re.compile(r"\b(?:1099511628211|16777619|14695981039346656037)\b"),
        {"src/base/text.hpp": "FNV-1a"},
        "use fnv1a of src/base/text.hpp",
    ),
    Home(
        re.compile(r"library_search\((?:gpu::)?vendor_library::cuda_driver"),
        {"src/device/cuda/cuda_api.cpp": "the device driver"},
        "use device_driver, which opens libcuda once",
    ),
]


def check_homes(files: list[str]) -> list[str]:
    """Checks that only its home uses a mechanism."""
    problems = []
    for path in files:
        if not path.startswith(("src/", "include/", "python/")):
            continue
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            code = line.split("//")[0]
            for home in HOMES:
                match = home.mechanism.search(code)
                if match and not path.startswith(tuple(home.files)):
                    problems.append(f"{path}:{number}: {match.group().strip('( ')}: {home.advice}")
    return problems


def check_file(path: str, components: list[Component], known: set[str]) -> list[str]:
    own = find_owner(path, components)
    if own is None:
        return [f"{path}: belongs to no component of docs/internals/architecture.md"]
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
                    problems.append(f"{path}:{number}: {own.name} must not include <{header}> ({name})")
            continue
        other = find_owner(target, components)
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
            problems.append(f"docs/internals/architecture.md: component {component.name} owns no file")
    problems += check_folders(components) + check_entry_points(files) + check_backend_names(files)
    problems += check_homes(files)
    cycles = count_cycles(files, components)
    problems += [f"components form an include cycle: {' '.join(cycle)}" for cycle in cycles]
    print(*problems, sep="\n", end="\n" if problems else "")
    counts = f"{len(files)} files, {len(components)} components, {len(cycles)} cycles"
    print(f"layers: {counts}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
