"""Registers the commands and converts expected failures to one line of text and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import __version__
from .._console import printable
from ..errors import Error
from ..layout import MissingError
from ..table import Status
from . import bench, demo, doctor, explain, info, report, run, simulate, trace, tune
from .console import BAD_ARGUMENT, FAILED, NOT_AVAILABLE, CommandError

_EXIT_CODES = {
    Status.invalid_argument: BAD_ARGUMENT,
    Status.config: BAD_ARGUMENT,
    Status.unsupported: NOT_AVAILABLE,
}

app = typer.Typer(
    name="isthmus",
    help="Collectives for accelerators and hosts: inspect, run, measure and tune.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (info.info, doctor.doctor, explain.explain, bench.bench, tune.tune, demo.demo, report.report):
    app.command()(command)
app.command()(simulate.simulate)
app.add_typer(trace.app, name="trace")
app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)(run.run)


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
