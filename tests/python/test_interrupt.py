"""Signals, exits and forks while a call waits for other ranks. Each program runs in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import isthmus

# Much longer than the programs run, and much shorter than the timeout of their communicators.
DEADLINE_S = 90
HEADER = """
import os, signal, sys, threading, time
import numpy as np
import isthmus

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell start without it

def wait_for_main_thread():
    \"\"\"Waits until the main thread waits in the core.\"\"\"
    time.sleep(0.5)
"""


def start(program: str) -> subprocess.Popen[str]:
    package = str(Path(isthmus.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": package, "ISTHMUS_TIMEOUT_S": "600"}
    return subprocess.Popen(
        [sys.executable, "-c", HEADER + textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run(program: str) -> tuple[int, str, str]:
    with start(program) as process:
        try:
            output, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, output, err


def interrupt_thread() -> str:
    return (
        "threading.Thread(target=lambda: (wait_for_main_thread(), os.kill(os.getpid(), signal.SIGINT))).start()"
    )


def test_ctrl_c_aborts_collective_on_all_ranks() -> None:
    code, output, err = run(f"""
        ranks = isthmus.Communicator.create_all(2)
        {interrupt_thread()}
        try:
            ranks[0].allreduce(np.ones(4, np.float32))
        except KeyboardInterrupt:
            print("interrupted")
        for rank in ranks:
            try:
                rank.allreduce(np.ones(4, np.float32))
            except isthmus.Error as error:
                print(error.code.name, error)
    """)
    assert code == 0, err
    lines = output.splitlines()
    assert lines[0] == "interrupted", output
    assert len(lines) == 3 and all(line.startswith("aborted") for line in lines[1:]), output
    assert "rank 0 was interrupted" in lines[2], output


def test_ctrl_c_ends_communicator_creation() -> None:
    code, _, err = run(f"""
        {interrupt_thread()}
        isthmus.Communicator.from_unique_id(isthmus.UniqueId.create(), 0, 2)
    """)
    assert code in (-signal.SIGINT, 130), err
    assert err.rstrip().endswith("KeyboardInterrupt"), err


def test_ctrl_c_ends_symmetric_allocation() -> None:
    code, output, err = run(f"""
        ranks = isthmus.Communicator.create_all(2)
        {interrupt_thread()}
        try:
            ranks[0].empty(1000)
        except KeyboardInterrupt:
            print("interrupted")
        try:
            ranks[1].barrier()
        except isthmus.Error as error:
            print(error.code.name)
    """)
    assert (code, output.split()) == (0, ["interrupted", "aborted"]), err


def test_signal_handler_runs_during_collective() -> None:
    # The other rank calls only after the handler has run, so the call cannot complete without the handler.
    code, output, err = run("""
        ranks = isthmus.Communicator.create_all(2)
        has_run = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: has_run.set())
        def other():
            wait_for_main_thread()
            os.kill(os.getpid(), signal.SIGUSR1)
            has_run.wait()
            ranks[1].allreduce(np.ones(4, np.float32))
        threading.Thread(target=other).start()
        print(ranks[0].allreduce(np.ones(4, np.float32)))
    """)
    assert (code, output.strip()) == (0, "[2. 2. 2. 2.]"), err


def test_exception_exits_while_another_thread_waits() -> None:
    for statement in (
        "raise ValueError('the main thread')",
        "with ranks[0]: raise ValueError('the main thread')",
    ):
        code, _, err = run(f"""
            ranks = isthmus.Communicator.create_all(2)
            waiter = threading.Thread(target=lambda: ranks[0].allreduce(np.ones(4, np.float32)), daemon=True)
            waiter.start()
            wait_for_main_thread()
            {statement}
        """)
        assert code == 1, (code, err)
        assert "ValueError: the main thread" in err, err


def test_close_aborts_call_of_another_thread() -> None:
    code, output, err = run("""
        ranks = isthmus.Communicator.create_all(2)
        def wait():
            try:
                with isthmus.group():
                    ranks[0].send(np.ones(1 << 20, np.float32), 1)
            except isthmus.Error as error:
                print(error.code.name)
        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_for_main_thread()
        ranks[0].close()
        waiter.join()
    """)
    assert (code, output.strip()) == (0, "aborted"), err


def test_forked_child_keeps_parent_communicators() -> None:
    code, output, err = run("""
        ranks = isthmus.Communicator.create_all(2)
        child = os.fork()
        if child == 0:
            try:
                ranks[0].barrier()
            except isthmus.Error as error:
                print("invalid after fork" in str(error), flush=True)
            sys.exit(0)  # runs the exit handlers, which close all communicators
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        with isthmus.group():
            outs = [rank.allreduce(np.ones(4, np.float32)) for rank in ranks]
        print(outs[0])
    """)
    assert (code, output.splitlines()) == (0, ["True", "0", "[2. 2. 2. 2.]"]), err
