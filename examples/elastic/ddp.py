"""DistributedDataParallel that continues with the other ranks when one is killed. Requires PyTorch 2.10.

torchrun --nproc-per-node 4 -m isthmus.torch --elastic examples/elastic/ddp.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import isthmus.torch

dist.init_process_group("cpu:isthmus,cuda:isthmus")
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
ddp, step, steps = DistributedDataParallel(model), 0, int(os.environ.get("STEPS", "200"))
print(f"rank {dist.get_rank()}: pid {os.getpid()}", flush=True)
while step < steps:
    inputs = torch.randn(32, 8)
    try:
        model.zero_grad()
        loss = (ddp(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)  # after this, all ranks have all gradients
    except RuntimeError as failure:  # a rank was lost
        print(f"step {step}: {failure}", flush=True)
        del ddp
        isthmus.torch.shrink()
        ddp = DistributedDataParallel(model)  # takes the parameters of the first surviving rank
        agreed = torch.tensor(step)
        dist.broadcast(agreed, 0)
        step = int(agreed)
        continue
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.05 * parameter.grad
    step += 1
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, step {step}, loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
