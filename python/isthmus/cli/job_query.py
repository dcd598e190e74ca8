"""Queries an MPI job: `query_job` starts it, and the main function of this module runs on its ranks.

The backends of a multi-process job cannot be queried in a single process, because its communicator has no MPI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from .. import launch
from .console import FAILED, CommandError

_REPLY_PREFIX = "isthmus-job-answer:"
_TIMEOUT_S = 60.0


def query_job(ranks: int, request: dict[str, Any], variables: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns the reply of rank 0 of an MPICH job with `ranks` processes.

    The request is {"explain": keyword arguments of Communicator.explain}, {"product": members of
    explain_fused.Product} or {"info": {}}. It can contain
    "config" (a configuration file) and "nodes" (the number of nodes to simulate, with equal numbers of
    consecutive ranks). Raises CommandError with the last line that the job printed.
    """
    launcher = launch.launcher("mpich")
    command = [
        *launcher.command(ranks, bind=False),
        sys.executable,
        "-m",
        "isthmus.cli.job_query",
        json.dumps(request),
    ]
    try:
        completed = subprocess.run(
            command,
            env=launch.environment(launcher, ranks) | (variables or {}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(
            f"the MPICH job with {ranks} ranks did not finish within {_TIMEOUT_S:.0f} s"
        ) from None
    for line in completed.stdout.splitlines():
        if line.startswith(_REPLY_PREFIX):
            return json.loads(line.removeprefix(_REPLY_PREFIX))
    error_lines = [line for line in completed.stderr.splitlines() if line.strip()]
    raise CommandError(
        error_lines[-1]
        if error_lines
        else f"the MPICH job with {ranks} ranks exited with {completed.returncode}",
        FAILED,
    )


def _run_rank(request: dict[str, Any]) -> None:
    from ..communicator import Communicator

    if request.get("nodes", 1) > 1:
        rank, size = (int(os.environ[f"PMI_{name}"]) for name in ("RANK", "SIZE"))  # set by the MPICH launcher
        os.environ["ISTHMUS_NODE"] = f"node{rank * request['nodes'] // size}"
    with Communicator.from_mpi(config=request.get("config"), timeout=_TIMEOUT_S / 2) as communicator:
        if "explain" in request:
            reply = communicator.explain(**request["explain"])
        elif "product" in request:
            from .explain_fused import Product, describe_plan

            reply = describe_plan(communicator, Product(**request["product"]))
        else:
            reply = communicator.info()
        if communicator.rank == 0:
            print(_REPLY_PREFIX + json.dumps(reply), flush=True)


if __name__ == "__main__":
    _run_rank(json.loads(sys.argv[1]))
