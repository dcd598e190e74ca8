"""DistributedDataParallel that continues when a rank is killed, with a replacement. Requires PyTorch 2.10.

torchrun --nproc-per-node 4 -m isthmus.torch --elastic examples/elastic/ddp.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from isthmus.torch import elastic

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train(job: elastic.Job) -> None:  # called again whenever the members change
    ddp = DistributedDataParallel(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in job.steps(int(os.environ.get("STEPS", "200"))):
        inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        loss = (ddp(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} of {size}: pid {os.getpid()}, step {step}, loss {loss.item():.6f}", flush=True)


elastic.run(train, model=model, optimizer=optimizer)
