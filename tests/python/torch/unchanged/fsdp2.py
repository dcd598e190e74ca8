"""FSDP2 with a default group that init_device_mesh creates without a backend name."""

import os

import torch
import torch.distributed as dist
from losses import DEVICE, batches, model, place, write
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

place()
mesh = init_device_mesh(DEVICE, (int(os.environ["WORLD_SIZE"]),))
sharded = fully_shard(model(), mesh=mesh)
optimizer = torch.optim.AdamW(sharded.parameters(), 0.01)
losses = []
for inputs, wanted in batches():
    loss = (sharded(inputs) - wanted).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
write(losses)
dist.destroy_process_group()
