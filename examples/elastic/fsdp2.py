"""FSDP2 that continues when a rank is killed, with a replacement. Requires PyTorch 2.10.

torchrun --nproc-per-node 4 -m isthmus.torch --elastic examples/elastic/fsdp2.py

The shards of a killed rank are lost. All ranks therefore continue from the latest checkpoint, which is in
memory (/dev/shm) and survives the processes. On several hosts, use a shared file system.
"""

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from isthmus.torch import elastic

CHECKPOINTS = Path(os.environ.get("CHECKPOINTS", "/dev/shm/isthmus-example-fsdp2"))
STEPS = int(os.environ.get("STEPS", "200"))


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    parameters, moments = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": moments}, checkpoint_id=CHECKPOINTS / str(step))
    if dist.get_rank() == 0:
        for path in CHECKPOINTS.iterdir():
            if path.name != str(step):
                shutil.rmtree(path)


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Loads the latest complete checkpoint, also of another number of ranks. Returns its step."""
    latest = [max((int(path.parent.name) for path in CHECKPOINTS.glob("*/.metadata")), default=0)]
    dist.broadcast_object_list(latest, 0)
    if latest[0] > 0:
        parameters, moments = get_state_dict(model, optimizer)
        dcp.load({"model": parameters, "optimizer": moments}, checkpoint_id=CHECKPOINTS / str(latest[0]))
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)
    return latest[0]


def train(job: elastic.Job) -> None:  # called again whenever the members change
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.step = restore(model, optimizer)
    rank, size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {size}: pid {os.getpid()}, step {job.step}", flush=True)
    loss = torch.zeros(())
    for step in job.steps(STEPS):
        inputs = torch.randn(48, 8, generator=torch.Generator().manual_seed(step))[rank::size]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            save(model, optimizer, step + 1)
    dist.all_reduce(loss := loss.detach(), dist.ReduceOp.AVG)
    if rank == 0:
        print(f"{size} ranks, step {job.step}, loss {loss.item():.6f}", flush=True)


elastic.run(train)
shutil.rmtree(CHECKPOINTS, ignore_errors=True)
