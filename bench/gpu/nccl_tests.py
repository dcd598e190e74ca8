#!/usr/bin/env python3
"""nccl-tests of NVIDIA with and without the preloaded library for NCCL: checks and times every collective.

    nccl_tests.py PROGRAMS LIBRARY [--launcher "mpiexec -n 2"] [--nccl LIBNCCL] [--out FILE]

PROGRAMS is the folder of all_reduce_perf and the other programs, which are not part of this repository. With a
launcher they must be built with MPI and run one process per GPU; without one, ranks are threads of one process.
First every datatype and operation is checked up to 4 MiB with LIBRARY (libisthmus_nccl_preload.so) preloaded.
Then float32 is timed with and without it, interleaved, call by call and in CUDA graphs. A sample is the average
reported by the program for the slowest rank. NCCL is LIBNCCL, or the library that the programs find.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from measured import time_us, write_records

# program of nccl-tests -> collective, whether it reduces, and bus bytes per record byte for n ranks
PROGRAMS = {
    "all_reduce": ("allreduce", True, lambda n: 2 * (n - 1) / n),
    "all_gather": ("allgather", False, lambda n: n - 1),
    "reduce_scatter": ("reduce_scatter", True, lambda n: (n - 1) / n),
    "broadcast": ("broadcast", False, lambda n: 1),
    "reduce": ("reduce", True, lambda n: 1),
    "alltoall": ("alltoall", False, lambda n: (n - 1) / n),
    "gather": ("gather", False, lambda n: (n - 1) / n),
    "scatter": ("scatter", False, lambda n: (n - 1) / n),
    "sendrecv": ("sendrecv", False, lambda n: 1),
}
CHECKED = ["-b", "128", "-e", "4M", "-f", "8", "-n", "2", "-w", "1", "-c", "1", "-d", "all"]
TIMED = ["-b", "128", "-e", "128M", "-f", "4", "-n", "20", "-w", "5", "-c", "1", "-a", "3"]
LIMIT_S = 150
PLACES = ("out_of_place", "in_place")
MODES = {"stream": [], "graph": ["-G", "8"]}


def run(
    arguments: argparse.Namespace, program: str, words: list[str], preloaded: bool
) -> tuple[list[dict], str]:
    """Returns the results and the output of the program. Raises if the program fails."""
    variables = {"NCCL_NVLS_ENABLE": "0"}
    if arguments.nccl:
        variables |= {"LD_LIBRARY_PATH": f"{arguments.nccl.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    if preloaded:
        variables |= {"LD_PRELOAD": str(arguments.library), "ISTHMUS_NCCL_REPORT": "1"}
        variables |= {"ISTHMUS_NCCL_LIBRARY": str(arguments.nccl)} if arguments.nccl else {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        command = [
            *shlex.split(arguments.launcher),
            "env",
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        command += [str(arguments.programs / f"{program}_perf"), *words, "-J", str(file)]
        command += [] if arguments.launcher else ["-t", str(arguments.ranks)]
        completed = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False
        )
        if completed.returncode != 0:
            raise RuntimeError(
                f"{shlex.join(command)} ended with {completed.returncode}: {completed.stdout[-3000:]}"
            )
        return json.loads(file.read_text(encoding="utf-8"))["results"], completed.stdout


def count_wrong(results: list[dict]) -> int:
    counts = [result[place]["nwrong"] for result in results for place in PLACES if result[place]]
    return int(sum(count or 0 for count in counts))


def paths_of(output: str) -> list[str]:
    """The lines of the report of the library."""
    return re.findall(r"^ +(nccl\w+ +\S.*)$", output, re.MULTILINE)


def check(arguments: argparse.Namespace) -> list[str]:
    """Checks every datatype and operation and returns the problems."""
    problems = []
    for program, (_, reduces, _) in PROGRAMS.items():
        if program not in arguments.only:
            continue
        words = [*CHECKED, *(["-o", "all"] if reduces else [])]
        try:
            results, output = run(arguments, program, words, True)
        except (RuntimeError, subprocess.TimeoutExpired) as failure:
            problems.append(f"{program}: {failure}")
            continue
        wrong = count_wrong(results)
        print(f"checked {program}: {len(results)} points, {wrong} wrong", flush=True)
        print("  " + "\n  ".join(paths_of(output)), flush=True)
        if wrong or not results:
            problems.append(f"{program}: {wrong} wrong of {len(results)} points")
    return problems


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    records_by_key: dict[tuple, dict[str, Any]] = {}
    for program, mode in ((program, mode) for program in arguments.only for mode in arguments.modes):
        collective, _, bus = PROGRAMS[program]
        paths: list[str] = []
        for turn in range(arguments.rounds):
            for preloaded in (False, True) if turn % 2 else (True, False):
                results, output = run(arguments, program, [*TIMED, *MODES[mode]], preloaded)
                paths = paths_of(output) or paths
                for result in results:
                    size = result["size"] // (arguments.ranks if program == "all_gather" else 1)
                    for place in (place for place in PLACES if result[place]):
                        add(
                            records_by_key,
                            (collective, size, mode, place, preloaded),
                            result[place],
                            arguments.ranks,
                        )
        print(f"measured {program}, {mode}: {'; '.join(' '.join(line.split()) for line in paths)}", flush=True)
        for record in records_by_key.values():
            if record["collective"] == collective and record["mode"] == mode:
                record["time_us"] = time_us(record.pop("samples"))
                record["algbw_gbs"] = record["bytes"] / record["time_us"]["median"] / 1e3
                record["busbw_gbs"] = record["algbw_gbs"] * bus(arguments.ranks)
    return list(records_by_key.values())


def add(records_by_key: dict[tuple, dict], key: tuple, result: dict[str, Any], ranks: int) -> None:
    collective, size, mode, place, preloaded = key
    record = records_by_key.setdefault(
        key,
        {
            "collective": collective,
            "dtype": "float32",
            "op": "sum",
            "bytes": size,
            "ranks": ranks,
            "provider": "nccl_preload" if preloaded else "nccl",
            "mode": mode,
            "place": place,
            "wrong": 0,
            "samples": [],
        },
    )
    record["samples"].append(float(result["time"]))
    record["wrong"] += int(result["nwrong"] or 0)


def show(records: list[dict[str, Any]]) -> None:
    """Prints the times of NCCL and with the library, and their ratio: one row per mode, one cell per size."""
    rows: dict[tuple, dict[int, dict[str, float]]] = {}
    for record in records:
        if record["place"] == "out_of_place":
            cells = rows.setdefault((record["collective"], record["mode"]), {})
            cells.setdefault(record["bytes"], {})[record["provider"]] = record["time_us"]["median"]
    for (collective, mode), cells in rows.items():
        shown = [
            f"{size}:{us['nccl']:.1f}/{us['nccl_preload']:.1f}={us['nccl'] / us['nccl_preload']:.2f}"
            for size, us in sorted(cells.items())
        ]
        print(f"{collective:14} {mode:6} {' '.join(shown)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("--launcher", default="", help="command that starts one process per GPU")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nccl", type=Path, help="file of another NCCL library")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of timing (0: check only)")
    parser.add_argument("--no-check", action="store_true", help="skip the check")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=lambda words: words.split(","), default=list(PROGRAMS))
    parser.add_argument("--modes", type=lambda words: words.split(","), default=list(MODES))
    arguments = parser.parse_args()
    arguments.library = arguments.library.resolve()
    problems = [] if arguments.no_check else check(arguments)
    records = measure(arguments) if arguments.rounds else []
    show(records)
    problems += [f"{r['collective']} of {r['bytes']} bytes: {r['wrong']} wrong" for r in records if r["wrong"]]
    if arguments.out:
        write_records(
            arguments.out, records, {"nccl": arguments.nccl.name if arguments.nccl else "of the programs"}
        )
    for problem in problems:
        print(f"nccl_tests: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
