"""One Python rank of a trial: calls allreduce and checks each result until the fault ends the calls."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = [1, 16, 1000, 20_000, 300_000]


class Rank:
    """The environment of a rank (front_ends.variables) and its event log."""

    def __init__(self, variables: dict[str, str], rank: int, size: int) -> None:
        os.environ.update(variables)
        self.variables, self.rank, self.size = variables, rank, size
        self.at_call, self.calls = int(variables["FAULT_AT"]), int(variables["FAULT_CALLS"])
        self.timeout_s = float(variables["FAULT_TIMEOUT_S"])
        self.folder = Path(variables["FAULT_FOLDER"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(self.folder / f"rank.{rank}", flags, 0o600)
        output = os.open(self.folder / "output", flags, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        self.log("begin")

    def log(self, event: str, **fields: Any) -> None:
        line = {"event": event, "time": time.clock_gettime(time.CLOCK_MONOTONIC), "pid": os.getpid()} | fields
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def inject_at(self, call: int) -> None:
        """Injects the fault, now or after the delay, if this is the faulty rank and the call."""
        if call != self.at_call or self.rank != int(self.variables["FAULT_RANK"]):
            return
        if delay := int(self.variables["FAULT_DELAY_US"]):
            threading.Timer(delay / 1e6, self._inject).start()
        else:
            self._inject()

    def _inject(self) -> None:
        fault = self.variables["FAULT"]
        self.log("fault")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in ("stop_short", "stop_long"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "exit":
            os._exit(3)
        if fault == "emfile":
            soft = len(os.listdir("/proc/self/fd")) + 32
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
            try:
                while True:
                    os.open("/dev/null", os.O_RDONLY)
            except OSError:
                pass
        if fault == "raise" and threading.current_thread() is threading.main_thread():
            raise LookupError("an exception of the program")

    def count_descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def wait_until_settled(self) -> None:
        end = time.monotonic() + 60
        while not (self.folder / "settled").exists() and time.monotonic() < end:
            time.sleep(0.005)

    def log_failure(self, location: str, failure: Exception) -> None:
        fields = {"in": location, "message": str(failure), "status": type(failure).__name__, "result": ""}
        if hasattr(failure, "ranks"):  # the exception of PyTorch has no ranks
            fields["ranks"] = failure.ranks
        self.log("failed", **fields)

    def call_until_failure(self, sum_of: Callable[[int, int], bool], failures: tuple[type, ...]) -> None:
        """`sum_of(call, elements)` returns whether the result of an allreduce was right."""
        for call in range(self.calls):
            self.inject_at(call)
            elements = SIZES[(call * 7 + int(self.variables["FAULT_SEED"])) % len(SIZES)]
            try:
                if not sum_of(call, elements):
                    self.log("wrong_result", call=call)
            except failures as failure:
                self.log_failure("allreduce", failure)
                return
        self.log("done")


def run(variables: dict[str, str], rank: int, size: int, path: list[str]) -> None:
    """Main function of the process of one rank."""
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    self = Rank(variables, rank, size)
    try:
        (_call_torch if variables["FAULT_FRONT_END"] == "torch" else _call)(self)
    except LookupError:  # the fault "raise": exits like after an unhandled exception
        os._exit(1)


def _call(self: Rank) -> None:
    import numpy as np

    import isthmus

    before = self.count_descriptors()
    id_file = self.folder / "id"
    if self.rank == 0:
        part = self.folder / "id.part"
        part.write_text(isthmus.UniqueId.create().hex())
        part.rename(id_file)
    while not id_file.exists():
        time.sleep(0.002)
    identity = isthmus.UniqueId.fromhex(id_file.read_text())
    config = self.variables["FAULT_CONFIG"]
    try:
        comm = isthmus.Communicator.from_unique_id(
            identity, self.rank, self.size, config=config, timeout=self.timeout_s
        )
    except isthmus.Error as failure:
        self.log_failure("create", failure)
        self.wait_until_settled()
        return
    self.log("ready")

    def sum_of(call: int, elements: int) -> bool:
        send_buffer = np.full(elements, call + self.rank, np.int32)
        if call % 16 == 5 and (subcommunicator := comm.split(0, 0)) is not None:
            subcommunicator.close()
        return bool((comm.allreduce(send_buffer) == call * self.size + sum(range(self.size))).all())

    self.call_until_failure(sum_of, (isthmus.Error,))
    self.wait_until_settled()
    comm.close()
    self.log("end", descriptors_before=before, descriptors=self.count_descriptors())


def _call_torch(self: Rank) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    os.environ["ISTHMUS_CONFIG"] = self.variables["FAULT_CONFIG"]
    torch.set_num_threads(1)
    store = f"file://{self.folder}/store"
    dist.init_process_group("cpu:isthmus", store, timedelta(seconds=self.timeout_s), self.size, self.rank)
    self.log("ready")

    def sum_of(call: int, elements: int) -> bool:
        data = torch.full((elements,), call + self.rank, dtype=torch.int32)
        if call % 16 == 5:
            dist.all_reduce(torch.ones(4), async_op=True).wait()
        dist.all_reduce(data)
        return bool((data == call * self.size + sum(range(self.size))).all())

    self.call_until_failure(sum_of, (dist.DistBackendError,))
    self.wait_until_settled()
    dist.destroy_process_group()
    self.log("end")
