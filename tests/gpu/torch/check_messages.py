#!/usr/bin/env python3
"""Messages of two ranks: check_messages.py OUT.json LIB.

Random batches with short and long messages on two streams, single messages, and captured graphs. They run on
NCCL, on NCCL with the preloaded library LIB, and on Isthmus. Both ranks derive the data from the same seeds.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist

DEVICE = os.environ.get("CHECK_DEVICE", "cuda")
LENGTHS = [1, 100, 5000, 40_000, 262_144, 262_145, 700_001, 1 << 20, (1 << 20) + 1, 3 << 20, 9 << 20]
POISON = 0xA5


def random_bytes(length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)


class Exchange:
    """A message from each rank to the other one, in buffers of this rank."""

    def __init__(self, lengths: tuple[int, int], seed: int) -> None:
        rank = dist.get_rank()
        self.lengths, self.own, self.peer = lengths, rank, 1 - rank
        self.sent = torch.empty(lengths[rank], dtype=torch.uint8, device=DEVICE)
        self.received = torch.empty(lengths[1 - rank], dtype=torch.uint8, device=DEVICE)
        self.refill(seed)

    def refill(self, seed: int) -> None:
        self.seed = seed
        self.sent.copy_(random_bytes(self.lengths[self.own], 2 * seed + self.own))
        self.received.fill_(POISON)

    def operations(self) -> list[dist.P2POp]:
        return [dist.P2POp(dist.isend, self.sent, self.peer), dist.P2POp(dist.irecv, self.received, self.peer)]

    def check(self) -> None:
        expected = random_bytes(self.lengths[self.peer], 2 * self.seed + self.peer)
        if not torch.equal(self.received.cpu(), expected):
            raise RuntimeError(f"wrong message: lengths {self.lengths}, seed {self.seed}")


def draw(shared: random.Random, seed: int) -> Exchange:
    return Exchange((shared.choice(LENGTHS), shared.choice(LENGTHS)), seed)


def start(exchanges: list[Exchange], own: random.Random) -> None:
    """One batch. The order of sends and receives is this rank's own."""
    operations = [each.operations() for each in exchanges]
    columns = list(zip(*operations, strict=True))
    own.shuffle(columns)
    for request in dist.batch_isend_irecv([each for column in columns for each in column]):
        request.wait()


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def random_batches() -> int:
    """Each rank divides the exchanges into batches as it likes."""
    rank, count = dist.get_rank(), 0
    streams = [torch.cuda.Stream() for _ in range(2)] if DEVICE == "cuda" else []
    for seed in range(12):
        shared, own = random.Random(seed), random.Random(2 * seed + rank + 1000)
        exchanges = [draw(shared, 100 * seed + i) for i in range(12)]
        synchronize()
        position = 0
        while position < len(exchanges):
            end = min(len(exchanges), position + own.randint(1, 4))
            if streams:
                with torch.cuda.stream(own.choice(streams)):
                    if own.random() < 0.2:
                        torch.cuda._sleep(own.randint(0, 2_000_000))
                    start(exchanges[position:end], own)
            else:
                start(exchanges[position:end], own)
            position = end
        synchronize()
        for each in exchanges:
            each.check()
        count += len(exchanges)
    return count


def single_messages() -> None:
    """Messages without a batch. One rank sends first, the other one receives first."""
    shared = random.Random(5)
    for seed in range(20):
        exchange = draw(shared, 5000 + seed)
        for is_send in (True, False) if dist.get_rank() == 0 else (False, True):
            if is_send:
                dist.send(exchange.sent, exchange.peer)
            else:
                dist.recv(exchange.received, exchange.peer)
        synchronize()
        exchange.check()


def graphs() -> None:
    """Captured batches on one backend and on two, replayed with new data."""
    short, long = 3000, 5 << 20
    shared = random.Random(7)
    several = [(long, short), (short, short), (short, long)]
    for lengths in ([(short, long)], [(long, short)], [(short, short)], several):
        exchanges = [Exchange(each, 1) for each in lengths]
        own = random.Random(dist.get_rank())
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            start(exchanges, own)  # establishes connections
        synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            start(exchanges, own)
        for replay in range(5):
            for each in exchanges:
                each.refill(9000 + shared.randint(0, 1000))
            synchronize()
            if replay % 2 == dist.get_rank():
                time.sleep(0.001)
            graph.replay()
            synchronize()
            for each in exchanges:
                each.check()


def body(_rank: int, backend: str, out: Path) -> None:
    if backend == "isthmus":
        importlib.import_module("isthmus.torch")
    dist.init_process_group(backend, timeout=timedelta(seconds=60), **ranks.init_arguments())
    checks: list[Any] = [random_batches, single_messages]
    ranks.run_checks(_rank, [*checks, graphs] if DEVICE == "cuda" else checks, out)
    if backend == "isthmus" and _rank == 0:
        for row in sys.modules["isthmus.torch"].report():
            print(f"path {row.collective} {row.path} {row.calls}")
    dist.destroy_process_group()


def run_mode(name: str, library: str, out: Path) -> dict[str, Any]:
    """Runs this program with one of the libraries, and checks which paths the messages used."""
    backend = "isthmus" if name == "isthmus" else "nccl"
    variables = {"LD_PRELOAD": library, "ISTHMUS_NCCL_REPORT": "1"} if name == "preload" else {}
    command = [sys.executable, __file__, "--body", backend, str(out.with_name(f"{out.stem}-{name}.json"))]
    try:
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as failure:
        return {"mode": name, "problem": f"no end after 120 s: {failure.stdout!r}"[-3000:]}
    text = done.stdout + done.stderr
    print(text, flush=True)
    problem = "" if done.returncode == 0 else text[-3000:]
    paths = {
        "preload": (r"ncclSend +p2p", r"ncclSend +passed to NCCL"),
        "isthmus": (r"path send p2p", r"path send nccl"),
    }
    for pattern in paths.get(name, ()):
        if not problem and not re.search(pattern, text):
            problem = f"no line matches {pattern!r}: {text[-3000:]}"
    return {"mode": name, "problem": problem}


def main() -> None:
    if sys.argv[1] == "--body":
        return ranks.run(2, body, sys.argv[2], Path(sys.argv[3]))
    out, library = Path(sys.argv[1]), str(Path(sys.argv[2]).resolve())
    ranks.write_results([run_mode(name, library, out) for name in ("nccl", "preload", "isthmus")], out)
    return None


if __name__ == "__main__":
    main()
