"""`python -m isthmus.torch [OPTIONS] SCRIPT ARGUMENTS`: runs an unmodified PyTorch script with Isthmus.

Use it with a launcher that starts the ranks: `torchrun --nproc-per-node 2 -m isthmus.torch SCRIPT ARGUMENTS`,
`accelerate launch -m` or `deepspeed --module`. `isthmus run --torch` calls torchrun itself.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from . import replace_backends
from ._supervisor import is_supervised, supervise


def main(arguments: list[str] | None = None) -> None:
    """Runs the script as __main__ with Isthmus instead of gloo and nccl and keeps its exit code."""
    parser = argparse.ArgumentParser(
        "python -m isthmus.torch", description="Runs a PyTorch script with Isthmus."
    )
    parser.add_argument(
        "--report", action="store_true", help="print calls, paths and times on rank 0 at the end"
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="with torchrun: replace ranks that a signal ends (isthmus.torch.elastic)",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is a module name, as in python -m"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    parser.add_argument("--local_rank", "--local-rank", help="added by DeepSpeed's launcher; passed to SCRIPT")
    options = parser.parse_args(arguments)
    if not options.module and not os.path.exists(options.script):
        parser.error(f"SCRIPT {options.script!r} does not exist; use -m to run a module")
    if options.elastic and not is_supervised():
        variables = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
        missing = [name for name in variables if name not in os.environ]
        if missing:
            parser.error(f"--elastic requires the variables of torchrun; {', '.join(missing)} is not set")
        if (code := supervise()) is not None:
            sys.exit(code)
    replace_backends(report=options.report)
    launcher_arguments = [] if options.local_rank is None else [f"--local_rank={options.local_rank}"]
    sys.argv = [options.script, *launcher_arguments, *options.arguments]
    if options.module:  # python -m has already put the current folder first
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.abspath(options.script))
        runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
