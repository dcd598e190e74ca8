"""Hosts as network namespaces: each has its own namespaces and shared memory, and one link to a switch.

`tc tbf` limits both directions of every link. Needs root, ip, tc, nsenter and unshare.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType

TOOLS = ("ip", "tc", "nsenter", "unshare")


def obstacle() -> str:
    """Returns the reason why hosts cannot be created, or ""."""
    if os.geteuid() != 0:
        return "needs root to create network namespaces"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    try:
        with Hosts(1, 1_000_000_000):
            return ""
    except NetworkError as problem:
        return str(problem)


class NetworkError(Exception):
    """The kernel refused a required operation."""


def call(*command: str) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {completed.stderr.strip() or completed.returncode}")


class Hosts:
    """A switch and `count` hosts. Prefix a command with `enter_command(host)` to run it on a host.

    `shares_memory` is for harnesses with a barrier in POSIX shared memory, which adds no network traffic.
    """

    def __init__(self, count: int, rate_bits: int, shares_memory: bool = False) -> None:
        self.count = count
        self._shares_memory = shares_memory
        self.rate_bits = rate_bits
        self._name = f"isthmus{os.getpid()}"
        self._namespace_processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        try:
            call("ip", "netns", "add", self._switch)
            call("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
            call("ip", "-n", self._switch, "link", "set", "switch", "up")
            for host in range(self.count):
                self._add(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _switch(self) -> str:
        return f"{self._name}-switch"

    def _add(self, host: int) -> None:
        space, port = f"{self._name}-{host}", f"port{host}"
        call("ip", "netns", "add", space)
        call(
            "ip",
            "-n",
            space,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            port,
            "netns",
            self._switch,
        )
        call("ip", "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            call("ip", "-n", space, "link", "set", device, "up")
        call("ip", "-n", self._switch, "link", "set", port, "master", "switch", "up")
        # A burst of a few packets, and no queue that could hide more than 20 ms of data.
        limit = ("tbf", "rate", f"{self.rate_bits}bit", "burst", "128kb", "latency", "20ms")
        call("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *limit)
        call("tc", "-n", self._switch, "qdisc", "add", "dev", port, "root", *limit)
        # Hides System V and POSIX memory of other hosts, and with it the flight recorders of their ranks. The
        # process keeps the namespaces alive.
        mount = "" if self._shares_memory else "mount -t tmpfs tmpfs /dev/shm && "
        process = ("ip", "netns", "exec", space, "unshare", "--ipc", "--mount")
        process += ("sh", "-c", f"{mount}exec sleep infinity")
        self._namespace_processes.append(subprocess.Popen(process, start_new_session=True))
        self._wait_for(self._namespace_processes[-1].pid)

    def _wait_for(self, process: int) -> None:
        """Waits until the process sleeps in its namespaces; entering earlier would find the wrong ones."""
        deadline = time.monotonic() + 60
        while Path(f"/proc/{process}/comm").read_text() != "sleep\n":
            if time.monotonic() > deadline:
                raise NetworkError("the process of a host did not start within 60 s")
            time.sleep(0.01)

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def enter_command(self, host: int) -> list[str]:
        """The prefix of a command that runs on that host."""
        return [
            "nsenter",
            "--target",
            str(self._namespace_processes[host].pid),
            "--net",
            "--ipc",
            "--mount",
            "env",
            f"ISTHMUS_NODE=host{host}",
        ]

    def cut_link(self, host: int) -> None:
        """Disconnects a host from the switch."""
        call("ip", "-n", self._switch, "link", "set", f"port{host}", "down")

    def restore_link(self, host: int) -> None:
        call("ip", "-n", self._switch, "link", "set", f"port{host}", "up")

    def close(self) -> None:
        for process in self._namespace_processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._namespace_processes.clear()
        for space in (*(f"{self._name}-{host}" for host in range(self.count)), self._switch):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
