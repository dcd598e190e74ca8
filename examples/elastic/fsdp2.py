"""FSDP2 that continues when a rank is killed, with a replacement. Requires PyTorch 2.10.

torchrun --nproc-per-node 4 -m isthmus.torch --elastic examples/elastic/fsdp2.py

The shards of a killed rank are lost. All ranks therefore continue from the latest checkpoint, which is in
memory (/dev/shm) and survives the processes. On several hosts, use a shared file system.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from isthmus.torch import elastic


def train(job: elastic.Job) -> None:  # called again whenever the members change
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.use_checkpoints(os.environ.get("CHECKPOINTS", "/dev/shm/isthmus-example-fsdp2"), model, optimizer)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in job.steps(int(os.environ.get("STEPS", "200"))):
        inputs = torch.randn(48, 8, generator=torch.Generator().manual_seed(step))[rank::size]
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} of {size}: pid {os.getpid()}, step {step}, loss {loss.item():.6f}", flush=True)


elastic.run(train)
