"""DDP with all kinds of groups. Compares get_backend() as programs do."""

import torch
import torch.distributed as dist
from losses import DEVICE, batches, model, place, write
from torch.nn.parallel import DistributedDataParallel

own = {"cpu": "gloo", "cuda": "nccl"}[DEVICE]
device = place()
dist.init_process_group(own, device_id=None if DEVICE == "cpu" else device)
rank, size = dist.get_rank(), dist.get_world_size()
groups = {
    "default": dist.group.WORLD,
    "new": dist.new_group(),
    "keyword": dist.new_group(backend="gloo"),
    "pairs": dist.new_group(backend="cpu:gloo" if DEVICE == "cpu" else "cpu:gloo,cuda:nccl"),
    "part": dist.new_group([1], backend=own),
    "mesh": dist.init_device_mesh(DEVICE, (size,)).get_group(),
    "split": dist.init_device_mesh(DEVICE, (size, 1)).get_group(1),  # uses split_group on CUDA
}
sums = {}
for name, group in groups.items():
    data = torch.full((5,), rank + 1.0, device="cpu" if name == "keyword" else device)
    if dist.get_rank(group) >= 0:
        dist.all_reduce(data, group=group)
    sums[name] = data.tolist()
if dist.get_backend(groups["keyword"]) == "gloo":
    dist.monitored_barrier(groups["keyword"])
names = [
    dist.get_backend(),
    dist.get_backend(groups["pairs"]),
    dist.get_backend_config(),
    dist.group.WORLD.name(),
]
bits = torch.tensor([1 << rank])
dist.all_reduce(bits, dist.ReduceOp.BOR, group=groups["keyword"])

trained = DistributedDataParallel(model())
optimizer = torch.optim.SGD(trained.parameters(), 0.05)
losses = []
for inputs, wanted in batches():
    loss = (trained(inputs) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
write(losses, sums=sums, names=names, bits=bits.item())
dist.destroy_process_group()
