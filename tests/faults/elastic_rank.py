"""A rank of the elastic job of the fault campaign: checks each gradient with an independent formula.

Sends events as datagrams to the socket ELASTIC_EVENTS: each call of train(), the first step after it, the end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from datetime import timedelta
from typing import Any

import elastic_oracle
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from isthmus.torch import elastic

STEP_S = 0.01  # stands for the work of a device
STOP = os.environ["ELASTIC_STOP"]  # if this file exists, the job ends
events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
torch.set_num_threads(1)
device = torch.device(os.environ["ELASTIC_DEVICE"])
if device.type == "cuda":
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
model = torch.nn.Linear(elastic_oracle.WIDTH, 1).to(device)
elastic_oracle.initialize(model)
optimizer = torch.optim.SGD(model.parameters(), lr=elastic_oracle.RATE)


def send(event: str, **fields: Any) -> None:
    identity = int(os.environ["ISTHMUS_TORCH_ELASTIC"])
    fields |= {"event": event, "pid": os.getpid(), "time": time.monotonic(), "identity": identity}
    events.sendto(json.dumps(fields).encode(), os.environ["ELASTIC_EVENTS"])


def check_equal_parameters() -> None:
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    copies = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, own)
    if any(not torch.equal(copy, own) for copy in copies):
        raise SystemExit(f"rank {dist.get_rank()}: the parameters of the ranks differ: {copies}")


def train(job: elastic.Job) -> tuple[int, list[float]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    check_equal_parameters()
    ddp = DistributedDataParallel(model)
    first = job.step
    send("enter", step=first, rank=rank, size=size)
    # Runs after the hook of elastic.run. Before it, a gradient on a GPU can be that of an aborted call.
    check = optimizer.register_step_pre_hook(lambda *_: elastic_oracle.check_gradient(model, job.step, size))
    try:
        for step in job.steps(10**9):
            time.sleep(STEP_S)
            inputs, targets = elastic_oracle.batch(step, rank)
            optimizer.zero_grad()
            (ddp(inputs.to(device)) - targets.to(device)).square().mean().backward()
            stop = torch.tensor([int(os.path.exists(STOP))])
            dist.all_reduce(stop, dist.ReduceOp.MAX)
            optimizer.step()
            if step == first:
                send("step", step=step, rank=rank, size=size)
            if stop:
                break
    finally:
        check.remove()
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return job.step, values.tolist()


send("start")
steps, parameters = elastic.run(
    train, timeout=timedelta(seconds=float(os.environ["ELASTIC_TIMEOUT_S"])), model=model, optimizer=optimizer
)
send("end", steps=steps, parameters=parameters)
signal.alarm(60)  # an exit must not hang
