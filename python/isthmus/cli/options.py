"""Options of the commands. Those of several commands are defined here once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

COUNT = click.IntRange(min=1)


class Number(click.FloatRange):
    """A number with a minimum. Rejects nan, which FloatRange accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number; pass a number of at least {self.min:g}", param, ctx)
        return number


def option(*names: str, help: str, default: Any = None, **settings: Any) -> Callable:
    """Defines an option. The help contains the default unless it is empty."""
    return click.option(*names, help=help, default=default, show_default=default not in (None, ""), **settings)


def flag(*names: str, help: str) -> Callable:
    """Defines an option without a value."""
    return click.option(*names, is_flag=True, help=help)


config = option("--config", help="Configuration file to use instead of the default files.")
dtype = option("--dtype", default="float32", help="Datatype.")
force = flag("--force", "-f", help="Overwrite an existing file.")
json = flag("--json", "as_json", help="Print one JSON document.")
op = option("--op", default="sum", help="Reduction operation.")
ranks = option("--ranks", "-n", type=COUNT, default=4, help="Number of ranks.")
sizes = option("--sizes", default="128:128M", help="FIRST:LAST (doubling) or a list of sizes in bytes.")


def product_sizes(command: Callable) -> Callable:
    """Defines --m, --k and --n."""
    for name, meaning in (
        ("--n", "columns of B; elements of a row"),
        ("--k", "columns of A"),
        ("--m", "rows of A and C; tokens"),
    ):
        command = option(name, type=COUNT, default=4096, help=f"Fused operators: {meaning}.")(command)
    return command
