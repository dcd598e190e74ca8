"""`python -m isthmus.torch [--report] SCRIPT ARGUMENTS`: runs an unchanged PyTorch script over Isthmus.

For a launcher that starts the ranks: `torchrun --nproc-per-node 2 -m isthmus.torch SCRIPT ARGUMENTS`, and so
with `accelerate launch -m` and `deepspeed --module`. `isthmus run --torch` calls torchrun itself.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from . import replace_backends


def main(arguments: list[str] | None = None) -> None:
    """Runs the script as __main__, with Isthmus in the place of gloo and nccl. Its exit code stays its own."""
    parser = argparse.ArgumentParser(
        "python -m isthmus.torch", description="Runs a PyTorch script over Isthmus."
    )
    parser.add_argument("--report", action="store_true", help="at the end rank 0 prints calls, paths and times")
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is a module's name, as in python -m"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    parser.add_argument(
        "--local_rank", "--local-rank", help="what DeepSpeed's launcher adds; handed on to SCRIPT"
    )
    asked = parser.parse_args(arguments)
    if not asked.module and not os.path.exists(asked.script):
        parser.error(f"SCRIPT {asked.script!r} does not exist (a module's name needs -m)")
    replace_backends(report=asked.report)
    added = [] if asked.local_rank is None else [f"--local_rank={asked.local_rank}"]
    sys.argv = [asked.script, *added, *asked.arguments]
    if asked.module:  # python -m already put the present folder first
        runpy.run_module(asked.script, run_name="__main__", alter_sys=True)
    else:
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.abspath(asked.script))
        runpy.run_path(asked.script, run_name="__main__")


if __name__ == "__main__":
    main()
