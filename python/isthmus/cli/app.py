"""Registers the commands and converts expected failures to one line of text and an exit code."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from .. import __version__
from .._console import printable
from ..errors import Error
from ..layout import MissingError
from ..table import Status
from .console import BAD_ARGUMENT, FAILED, NOT_AVAILABLE, CommandError, PlainCommand, PlainGroup

_EXIT_CODES = {
    Status.invalid_argument: BAD_ARGUMENT,
    Status.config: BAD_ARGUMENT,
    Status.unsupported: NOT_AVAILABLE,
}

# Each command is a function, or a Typer `app`, in the module of the same name.
_COMMANDS = ("info", "doctor", "explain", "bench", "tune", "demo", "report", "simulate", "run", "trace")
_PROGRAM_FOLLOWS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}


class _Commands(PlainGroup):
    """Imports the module of a command when it is used. Importing all of them would take 0.1 s."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # The commands are needed to suggest one for an unknown name.
        for name in (cmd_name,) if cmd_name in _COMMANDS else _COMMANDS:
            if name not in self.commands:
                self.commands[name] = _import_command(name)
        return self.commands.get(cmd_name)


def _import_command(name: str) -> Any:
    module = import_module(f".{name}", __package__)
    own_app = getattr(module, "app", None)
    if own_app is None:
        own_app = typer.Typer(add_completion=False)
        own_app.command(name, cls=PlainCommand, context_settings=_PROGRAM_FOLLOWS if name == "run" else None)(
            getattr(module, name)
        )
    command = typer.main.get_command(own_app)
    command.name = name
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = re.sub(r"(?<!\n)\n(?!\n)", " ", each.help or "")  # paragraphs fill the terminal
    return command


app = typer.Typer(
    name="isthmus",
    cls=_Commands,
    help="Collectives for accelerators and hosts: inspect, run, measure and tune.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    try:
        app(args=arguments)
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else int(exit_request.code is not None)
    except CommandError as failure:
        return _fail(str(failure), failure.exit_code)
    except MissingError as error:
        return _fail(str(error), NOT_AVAILABLE)
    except Error as failure:
        return _fail(str(failure), _EXIT_CODES.get(failure.code, FAILED))
    except ValueError as failure:
        return _fail(str(failure), BAD_ARGUMENT)
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as in shells
    return 0


def _fail(message: str, exit_code: int) -> int:
    print(f"isthmus: {printable(message)}", file=sys.stderr)
    return exit_code
