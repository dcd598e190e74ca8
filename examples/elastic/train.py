"""Elastic training: loses a rank and continues with the others, with DistributedDataParallel on CPUs or GPUs.

    python examples/elastic/train.py --ranks 4 --lose 2 --at 10 --steps 40
    python examples/elastic/train.py --ranks 2 --lose 1 --device cuda

One process per rank. Rank `--lose` is killed (SIGKILL) in step `--at`. The others get an error, shrink the
group, take over the parameters and the step of its lowest rank, and continue. The store is a file, so that any
rank can exit; a store inside a rank would be lost with it. docs/guide/failures.md has the details.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import isthmus.torch


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The training data of a rank and step: inputs, and their sums as targets."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 8, generator=random)
    return inputs, inputs.sum(1, keepdim=True)


def train_step(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> float:
    inputs, targets = batch(dist.get_rank(), step)
    optimizer.zero_grad()
    device = next(ddp.parameters()).device
    loss = nn.functional.mse_loss(ddp(inputs.to(device)), targets.to(device))
    loss.backward()
    mean = loss.detach()
    work = dist.all_reduce(mean, async_op=True)
    work.wait()
    total = mean.item()  # waits for the GPU's calls, also for those that a lost rank aborted
    work.wait()  # raises the error of an aborted call
    optimizer.step()  # only after every rank has all gradients
    return total / dist.get_world_size()


def recover(model: nn.Module, step: int) -> tuple[DistributedDataParallel, int]:
    """Synchronizes the state of the survivors; some may have finished the step in which others failed."""
    isthmus.torch.shrink()
    ddp = DistributedDataParallel(model)  # broadcasts the parameters of rank 0
    agreed = torch.tensor([step], device=next(model.parameters()).device)
    dist.broadcast(agreed, 0)
    return ddp, int(agreed.item())


def train(rank: int, options: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:isthmus,cuda:isthmus",
        store=dist.FileStore(store, options.ranks),
        rank=rank,
        world_size=options.ranks,
        timeout=timedelta(seconds=options.timeout),
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step, losses = 0, []
    while step < options.steps:
        if rank == options.lose and step == options.at:
            os.kill(os.getpid(), signal.SIGKILL)
        failed = ""
        try:
            losses.append(train_step(ddp, optimizer, step))
            step += 1
        except RuntimeError as failure:  # includes DistBackendError and errors of autograd's threads
            failed = str(failure).splitlines()[0]
        if failed:
            print(f"rank {rank}, step {step}: {failed}", flush=True)
            del ddp  # its hooks belong to the old group
            ddp, step = recover(model, step)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, loss {losses[0]:.3f} -> {losses[-1]:.3f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lose", type=int, default=2, help="the rank to kill (-1: none)")
    parser.add_argument("--at", type=int, default=10, help="the step in which it is killed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU per rank")
    parser.add_argument("--timeout", type=float, default=30, help="timeout of the group, in seconds")
    options = parser.parse_args()
    processes = torch.multiprocessing.get_context("fork")  # imports PyTorch once; it has no threads yet
    with tempfile.TemporaryDirectory() as folder:
        shared = (options, f"{folder}/store")
        workers = [processes.Process(target=train, args=(rank, *shared)) for rank in range(options.ranks)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    lost = [rank for rank, worker in enumerate(workers) if worker.exitcode != 0]
    print(f"lost: {lost}", flush=True)
    if lost != [rank for rank in (options.lose,) if rank >= 0]:
        raise SystemExit(f"ranks {lost} failed, expected only --lose {options.lose}")


if __name__ == "__main__":
    main()
