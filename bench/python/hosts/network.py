"""Hosts that share nothing but a network: namespaces and shared memory of their own, and one link to a switch.

Both directions of every link are limited by `tc tbf`. Needs root, ip, tc, nsenter and unshare.
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
    """Why hosts can't be made here; "" where they can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    try:
        with Hosts(1, 1_000_000_000):
            return ""
    except NetworkError as problem:
        return str(problem)


class NetworkError(Exception):
    """The kernel refuses what is needed."""


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Hosts:
    """A switch and `count` hosts; those hosts are entered by `entering(host)`. A harness whose barrier is in
    POSIX shared memory, so that it adds nothing to the network, needs hosts that share it."""

    def __init__(self, count: int, rate_bits: int, shares_memory: bool = False) -> None:
        self.count = count
        self._shares_memory = shares_memory
        self._rate = rate_bits
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
        self, exception_type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
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
        # A burst of a few packets, and no queue in which 20 ms of data could wait unseen.
        limit = ("tbf", "rate", f"{self._rate}bit", "burst", "128kb", "latency", "20ms")
        call("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *limit)
        call("tc", "-n", self._switch, "qdisc", "add", "dev", port, "root", *limit)
        # System V and POSIX memory of other hosts, and with it their ranks' flight recorders, is out of reach
        # while somebody holds the namespaces.
        mount = "" if self._shares_memory else "mount -t tmpfs tmpfs /dev/shm && "
        process = ("ip", "netns", "exec", space, "unshare", "--ipc", "--mount")
        process += ("sh", "-c", f"{mount}exec sleep infinity")
        self._namespace_processes.append(subprocess.Popen(process, start_new_session=True))
        self._wait_for(self._namespace_processes[-1].pid)

    def _wait_for(self, process: int) -> None:
        """Until it sleeps, in its namespaces: whoever enters them before would be in the wrong ones."""
        deadline = time.monotonic() + 60
        while Path(f"/proc/{process}/comm").read_text() != "sleep\n":
            if time.monotonic() > deadline:
                raise NetworkError("a host does not get its own namespaces and shared memory")
            time.sleep(0.01)

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def enter_command(self, host: int) -> list[str]:
        """What stands before a command that runs on that host."""
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
        """Pulls the plug of a host."""
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
