"""Jobs under torchrun that continue after the end of a rank, and take in its replacement."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_processes import QUIET, RankProcesses

from isthmus.torch import elastic

ROOT = Path(__file__).resolve().parents[3]
RANKS = 3
sys.path.insert(0, str(ROOT / "tests/faults"))
import elastic_job  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="PyTorch has no shrink_group")


# ---- jobs under torchrun ----------------------------------------------------------------------------------


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Iterator[elastic_job.Job]:
    job = elastic_job.Job(getattr(request, "param", RANKS), timeout_s=5)
    yield job
    print(job.output())
    job.close()


def test_killed_and_stopped_ranks_are_replaced(job: elastic_job.Job) -> None:
    job.wait_for_full_size()
    generator = random.Random(1)
    for join_delay in (None, 0.05):  # the replacement is also killed while it joins
        survivors = job.kill(generator, join_delay=join_delay).next_steps
        assert len(survivors) == RANKS - 1
    # In the same job, because importing PyTorch in its processes takes ten CPU seconds.
    stopped = next(pid for pid, rank in job.members.items() if rank == 1)
    os.kill(stopped, signal.SIGSTOP)
    while job.next_event(time.monotonic() + 60)["size"] != RANKS - 1:
        pass
    os.kill(stopped, signal.SIGCONT)
    job.wait_for_full_size()
    assert stopped not in job.members
    job.finish()  # compares the parameters with those of a single process


@pytest.mark.parametrize("job", [2], indirect=True)
def test_job_ends_if_all_ranks_are_killed(job: elastic_job.Job) -> None:
    job.wait_for_full_size()
    for pid in job.members:
        os.kill(pid, signal.SIGKILL)
    assert job.process.wait() != 0
    assert "all ranks with the state of the job were lost" in job.output()


def test_job_ends_if_a_rank_is_killed_at_its_start(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command = [sys.executable, *launcher, "-m", "isthmus.torch", "--elastic", str(script)]
    completed = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True)
    assert completed.returncode != 0
    assert "rank 0 was ended before it joined the job" in completed.stderr


def run_example(name: str, can_kill: Callable[[], bool], **variables: str) -> str:
    """Runs an example, kills rank 0 when `can_kill` returns True, and returns the output."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [
        sys.executable,
        *launcher,
        "-m",
        "isthmus.torch",
        "--elastic",
        str(ROOT / "examples/elastic" / name),
    ]
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | QUIET | variables
    )
    assert job.stdout is not None
    output, victim = "", 0
    for line in job.stdout:
        output += line
        if not victim and (entry := re.search(rf"rank 0 of {RANKS}: pid (\d+)", line)):
            victim = int(entry[1])
            while not can_kill():
                time.sleep(0.01)
            os.kill(victim, signal.SIGKILL)
    assert job.wait() == 0, output
    assert "isthmus: rank 0 was ended by SIGKILL" in output
    assert len(re.findall(rf"^isthmus: {RANKS - 1} ranks continue at step \d+", output, re.M)) == 1, output
    assert "isthmus_communicator_abort" not in output
    return output


def last_losses(output: str, steps: int) -> list[float]:
    """The losses of the ranks in the last step of an example."""
    entries = re.findall(rf"rank \d of (\d): pid \d+, step {steps - 1}, loss (\d+\.\d{{6}})", output)
    assert entries and all(len(entries) == int(size) for size, _ in entries), output
    return [float(loss) for _, loss in entries]


def test_ddp_example_continues_after_kill() -> None:
    output = run_example("ddp.py", lambda: True, STEPS="1500")
    assert all(loss < 1e-3 for loss in last_losses(output, 1500)), output


def fsdp2_loss(steps: int) -> float:
    """The last loss of examples/elastic/fsdp2.py in a single process."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        inputs = torch.randn(48, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_fsdp2_example_continues_after_kill(tmp_path: Path) -> None:
    def has_checkpoint() -> bool:
        return any(int(path.parent.name) >= 20 for path in tmp_path.glob("checkpoints/*/.metadata"))

    output = run_example("fsdp2.py", has_checkpoint, STEPS="120", CHECKPOINTS=str(tmp_path / "checkpoints"))
    restored = [int(step) for step in re.findall(r"ranks loaded the checkpoint of step (\d+)", output)]
    assert restored and min(restored) >= 20, output
    losses = last_losses(output, 120)
    assert sum(losses) / len(losses) == pytest.approx(fsdp2_loss(120), rel=1e-2), output
    assert not has_checkpoint(), "the checkpoint is removed at the end"


# ---- jobs of one rank, without a supervisor ---------------------------------------------------------------


def run_alone(train: Callable[[elastic.Job], Any], **state: Any) -> Any:
    """Runs an elastic job that has only this process."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    os.environ.update(address, RANK="0", WORLD_SIZE="1", ISTHMUS_TORCH_ELASTIC="0")
    return elastic.run(train, **state)


def make_state() -> dict[str, Any]:
    model = torch.nn.Linear(2, 1)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def count_steps() -> None:
    state = make_state()
    calls: list[int] = []

    def train(job: elastic.Job) -> int:
        for step in job.steps(4):
            calls.append(step)
            if step != 2:  # an iteration without a step of the optimizer also counts
                state["optimizer"].step()
        assert dist.get_world_size() == 1
        return job.step

    assert run_alone(train, **state) == 4
    assert calls == [0, 1, 2, 3]
    assert not dist.is_initialized()
    state["optimizer"].step()  # the hooks of the job are removed


def misuse() -> None:
    state = make_state()
    optimizer = state["optimizer"]

    def step_twice(job: elastic.Job) -> None:
        for _ in job.steps(1):
            optimizer.step()
            optimizer.step()

    def step_with_closure(job: elastic.Job) -> None:
        for _ in job.steps(1):
            optimizer.step(lambda: torch.zeros(1))

    def fail(job: elastic.Job) -> None:
        raise RuntimeError("an error of the program")

    for train, message in [
        (step_twice, "was called twice"),
        (step_with_closure, "with a closure"),
        (fail, "an error of the program"),
    ]:
        with pytest.raises((TypeError, RuntimeError), match=message):
            run_alone(train, **state)
        dist.destroy_process_group()
    with pytest.raises(TypeError, match="contains 2 optimizers"):
        run_alone(fail, **state, other=torch.optim.SGD(state["model"].parameters()))
    with pytest.raises(TypeError, match="epoch is of type int"):
        run_alone(fail, epoch=1)
    dist.init_process_group("cpu:isthmus", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="remove init_process_group"):
        run_alone(fail)
    del os.environ["ISTHMUS_TORCH_ELASTIC"]
    with pytest.raises(RuntimeError, match="has no supervisor"):
        elastic.run(fail)


@pytest.mark.parametrize("work", [count_steps, misuse])
def test_job_of_one_rank(fresh_ranks: Callable[..., RankProcesses], work: Callable[[], None]) -> None:
    fresh_ranks().run(work, backend=None)
