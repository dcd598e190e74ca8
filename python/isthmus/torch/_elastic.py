"""`python -m isthmus.torch --elastic`: a rank that is killed does not end the job.

torchrun ends all processes that it started if one of them fails. With this option, they do not run the script
but supervise one process each that does. The supervisor of a killed rank waits for the end of the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from types import FrameType

import torch.distributed as dist

_SUPERVISED = "ISTHMUS_TORCH_SUPERVISED"
_DONE, _KILLED = "isthmus_elastic_done", "isthmus_elastic_killed"


def is_supervised() -> bool:
    """Returns whether this process runs the script for a supervisor."""
    return _SUPERVISED in os.environ


def supervise() -> int:
    """Runs this command again in a child process. Returns the exit code of the job as seen by this rank.

    An exit code of the script passes through and ends the job. If a signal ended the script, the other ranks
    continue, and the result is theirs.
    """
    child = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=os.environ | {_SUPERVISED: "1"})

    def forward(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    code = child.wait()
    if code > 0 or -code in (signal.SIGTERM, signal.SIGINT):
        return code if code > 0 else 128 - code
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=60),
    )
    if code == 0:
        store.set(_DONE, "1")
        return 0
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"isthmus: rank {rank} was ended by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
    store.add(_KILLED, 1)
    while not store.check([_DONE]):
        if store.add(_KILLED, 0) == size:
            return 1
        time.sleep(0.2)
    return 0
