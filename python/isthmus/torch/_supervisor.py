"""`python -m isthmus.torch --elastic`: a rank that is killed does not end the job.

torchrun ends all processes that it started if one of them fails. With this option, they do not run the script
but fork a child that does. If a signal ends the child, its supervisor forks a replacement. A fork does not
import PyTorch again.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from types import FrameType

from ._membership import IDENTITY, Membership

_MAX_ATTEMPTS = 3  # children in a row that are killed before they join
_PR_SET_PDEATHSIG = 1  # prctl(2)
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


def is_supervised() -> bool:
    """Returns whether this process runs the script for a supervisor."""
    return IDENTITY in os.environ


def supervise() -> int | None:
    """Forks the child that runs the script, and its replacements. Returns None in the child.

    In the supervisor, returns the exit code of the job as seen by this rank. An exit code of the script passes
    through and ends the job.
    """
    # Otherwise, torch.cuda.is_available() initializes the driver, and forked children cannot use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # NCCL's RAS thread keeps a socket for each lost peer, so survivors would gain one per failure.
    os.environ.setdefault("NCCL_RAS_ENABLE", "0")
    # The optimizers of PyTorch import torch._dynamo, which takes more than half a second.
    for name in ("torch._dynamo", "torch.distributed.tensor.debug"):
        importlib.import_module(name)
    identity, attempts = int(os.environ["RANK"]), 0
    job: Membership | None = None
    while True:
        supervisor = os.getpid()
        child = os.fork()
        if child == 0:
            _end_with(supervisor)
            os.environ[IDENTITY] = str(identity)
            del job  # closes the inherited connection
            return None
        code = _wait_for(child)
        if code >= 0 or -code in _FORWARDED:
            return code if code >= 0 else 128 - code
        rank, name = os.environ["RANK"], signal.Signals(-code).name
        print(f"isthmus: rank {rank} was ended by {name}", file=sys.stderr, flush=True)
        job = job or Membership.connect()
        job.add_gone([identity])
        if job.is_done():
            return 0
        attempts = 0 if identity in job.joined() else attempts + 1
        if attempts == _MAX_ATTEMPTS or (attempts > 0 and identity < job.initial_size):
            print(f"isthmus: rank {rank} was ended before it joined the job", file=sys.stderr, flush=True)
            return 128 - code
        identity = job.next_identity()


def _wait_for(child: int) -> int:
    """Waits for the child and forwards signals to it. Returns its exit code, or a negative signal number."""

    def forward(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    previous = {number: signal.signal(number, forward) for number in _FORWARDED}
    _, status = os.waitpid(child, 0)
    for number, handler in previous.items():  # a child inherits the handlers
        signal.signal(number, handler)
    return os.waitstatus_to_exitcode(status)


def _end_with(supervisor: int) -> None:
    """Ends this process when its supervisor ends, so that it does not continue without the job."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os.kill(os.getpid(), signal.SIGKILL)
