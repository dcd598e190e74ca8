"""Registers the commands and converts expected failures to one line of text and an exit code."""

from __future__ import annotations

import sys
from typing import Any

import click

from .. import __version__
from .._console import printable
from ..errors import Error
from ..layout import MissingError, import_optional, program
from ..table import Status
from .console import BAD_ARGUMENT, FAILED, NOT_AVAILABLE, CommandError

_EXIT_CODES = {
    Status.invalid_argument: BAD_ARGUMENT,
    Status.config: BAD_ARGUMENT,
    Status.unsupported: NOT_AVAILABLE,
}

# Each command is in the module of the same name.
_COMMANDS = {
    "info": "Prints version, machine, backends, rules, memory, MPI and SYCL devices.",
    "doctor": "Tests this installation, or reports which rank of a job blocks the others.",
    "explain": "Prints the backend and the rule that a call would use.",
    "bench": "Measures a collective and its peers (in a checkout).",
    "tune": "Measures all backends and writes the profile of this machine (in a checkout).",
    "demo": "Runs and measures the SYCL example job (in a checkout).",
    "report": "Writes an HTML page from the records of benchmarks.",
    "simulate": "Predicts the time of a collective or a training step on several nodes.",
    "run": "Starts a program with several ranks, or with a preloaded library.",
    "trace": "Processes the traces of a job.",
}
_PROGRAMS = {"bench": "isthmus_bench", "tune": "isthmus_bench", "demo": "sycl_collectives"}  # of a checkout


class _Commands(click.Group):
    """Imports the module of a command when it is used. Importing all of them would take 0.1 s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _import_command(command.name), rest


def _import_command(name: str) -> click.Command:
    try:
        return getattr(import_optional(f"{__package__}.{name}"), name)
    except MissingError:
        if name in _PROGRAMS:
            program(_PROGRAMS[name])  # without a checkout, the missing package would not help
        raise


@click.group(
    cls=_Commands,
    commands={name: click.Command(name, short_help=text) for name, text in _COMMANDS.items()},
    context_settings={"max_content_width": 120},
)
@click.version_option(__version__, message="%(version)s", help="Print the version.")
def app() -> None:
    """Collectives for accelerators and hosts: inspect, run, measure and tune."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    try:
        return app.main(arguments, standalone_mode=False) or 0
    except click.ClickException as failure:
        failure.show()
        return failure.exit_code
    except CommandError as failure:
        return _fail(str(failure), failure.exit_code)
    except MissingError as error:
        return _fail(str(error), NOT_AVAILABLE)
    except Error as failure:
        return _fail(str(failure), _EXIT_CODES.get(failure.code, FAILED))
    except ValueError as failure:
        return _fail(str(failure), BAD_ARGUMENT)
    except (click.Abort, KeyboardInterrupt):
        return 130  # 128 + SIGINT, as in shells


def _fail(message: str, exit_code: int) -> int:
    print(f"isthmus: {printable(message)}", file=sys.stderr)
    return exit_code
