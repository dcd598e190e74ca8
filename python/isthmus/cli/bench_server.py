"""A running measurement program: its ranks start once for all measurements of a setting."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from .. import launch, layout
from ..layout import MissingError
from ..records import Report
from .console import CommandError
from .measure import Sweep, main_error_line, measured_variables
from .profile import Setting


class BenchServer:
    """The ranks of `isthmus_bench --serve`. Starts with the first request.

    MPICH starts the ranks if it is installed. Otherwise the program forks them, and the backend `mpi` is not
    available. Errors: raises CommandError if the program fails.
    """

    def __init__(self, setting: Setting) -> None:
        program = str(layout.program("isthmus_bench"))  # check this before MPI, as in `demo`
        arguments = ["--serve", "--platform", setting.platform]
        self._variables: dict[str, str] = {}
        self.missing_mpi = ""  # the reason why MPICH does not start the ranks
        try:
            launcher = launch.launcher("mpich")
        except MissingError as reason:
            self.missing_mpi = str(reason)
            self._command = [program, *arguments, "--ranks", str(setting.ranks)]
        else:
            # Ranks on devices are not bound, because the threads of NCCL would share the core.
            bind = setting.platform == "host"
            self._command = [*launcher.command(setting.ranks, bind=bind), program, *arguments]
            self._variables = launch.oversubscription_variables(launcher, setting.ranks)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> BenchServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        if kind is None:
            self._process.stdin.close()
            self._process.wait()
        else:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._process = None

    def info(self, rules: str) -> dict[str, Any]:
        """Returns Communicator.info() of rank 0 with these rules."""
        return self._request(["--info", "--rule", rules])["info"]

    def measure(
        self, sweep: Sweep, arguments: Sequence[str], point_done: Callable[[], None]
    ) -> tuple[Report, str]:
        """Returns the report, and the reason why the program supports no size, or "".

        `arguments` select the path: --backend, --rule or --profile, and a value.
        """
        reply = self._request([*sweep.arguments(), *arguments], point_done)
        return Report.model_validate(reply["report"]), reply["refusal"]

    def _request(self, words: list[str], point_done: Callable[[], None] = lambda: None) -> dict[str, Any]:
        process = self._start()
        try:
            process.stdin.write(shlex.join(words) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
                if line.strip()[:1].isdigit():
                    point_done()
        except BrokenPipeError:
            pass
        code = process.wait()
        self._errors.seek(0)
        reason = main_error_line([line.strip() for line in self._errors if line.strip()], code)
        self._process = None
        raise CommandError(
            f"the measurement program failed with exit code {code}: {reason} "
            f"(command: {shlex.join(self._command)}; request: {shlex.join(words)})"
        )

    def _start(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile(  # noqa: SIM115 - closed with the process
                "w+", errors="replace"
            )
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | measured_variables() | {"ISTHMUS_PROFILE": "none"} | self._variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        return self._process
