"""MC902 for a config value that is a size in the model and no length. Takes a binding and its program; reports to the collector."""

from __future__ import annotations

from typing import Any

from mstarc.binding import Bound
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.ir.types import Ref
from mstarc.ir.visit import every_expr
from mstarc.passes.check_sizes import sizes_of


def check_config_sizes(bound: Bound, program: Program, report: Collector) -> None:
    """Each value once, with the first size that it is of."""
    paths = {config.name: config.path for config in program.configs if config.path}
    told: set[str] = set()
    for size in sizes_of(program):
        for part in every_expr(size.expr):
            path = paths.get(part.name, "") if isinstance(part, Ref) and part.scope == "config" else ""
            value = bound.binding.value(path) if path else None
            if value is None or path in told or _fits(value, alone=part is size.expr, least=size.least):
                continue
            told.add(path)
            wanted = f"a whole number of at least {size.least}" if part is size.expr else "a number"
            report.report(
                rules.MC902,
                f"`config.{path}` is {value!r}, and {size.what} takes {wanted}",
                bound.place(("config", *path.split(".", 1))),
                subject=f"config.{path}",
                help=f"write {wanted}",
            )


def _fits(value: Any, alone: bool, least: int) -> bool:
    """Whether a value can be a size by itself, or a part of one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not alone or (isinstance(value, int) and value >= least)


__all__ = ["check_config_sizes"]
