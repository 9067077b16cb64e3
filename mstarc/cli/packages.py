"""Generated packages on disk: reading and linking one, with errors as findings. Takes folders and placements; gives linked programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mstarc.cli.findings import write_findings
from mstarc.cli.guard import FINDINGS, USAGE, Failure
from mstarc.diagnostics.core import Collector

if TYPE_CHECKING:
    from mstarc.plan.model import Plan
    from mstarc_runtime.abi.linked import Linked


WRITE = "write it with `mstarc compile SPEC -o DIR`"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that links."""

    folder: Path
    plan: Plan
    linked: Linked


def read_package(folder: str) -> Plan:
    """The plan of a generated package. Raises Failure."""
    from mstarc.plan.model import PlanError, read_plan

    path = Path(folder)
    if not path.is_dir():
        what = "is a file; name the folder that `mstarc compile -o` wrote" if path.exists() else "does not exist"
        raise Failure(f"`{folder}` {what}", USAGE)
    if not (path / "plan.json").is_file():
        raise Failure(f"`{folder}` is no generated package: it has no plan.json", USAGE, help=WRITE)
    try:
        return read_plan(path)
    except PlanError as error:
        raise Failure(str(error), help=WRITE) from None


def link_package(folder: str, placement: str | None) -> Package:
    """The package under a placement: a path, or a name in specs/placements or beside the spec. Raises Failure after the findings."""
    from mstarc.ir.errors import IrTextError
    from mstarc.plan.link import link
    from mstarc.plan.placement import Placement, read_placement

    plan = read_package(folder)
    report = Collector()
    placed = (
        Placement() if placement is None else read_placement(_placement_file(placement, Path(folder), plan), report)
    )
    try:
        linked = None if placed is None else link(plan, placed, Path(folder), report)
    except (
        IrTextError,
        LookupError,
        TypeError,
    ) as error:  # every text and key in it is as `mstarc compile` wrote it, or edited
        what = f"{type(error).__name__}: {error}"
        raise Failure(f"{Path(folder) / 'plan.json'} is damaged ({what})", help=WRITE) from error
    write_findings(report.findings())
    if linked is None:
        raise Failure(
            f"`{folder}` cannot be linked" + (f" under placement `{placement}`" if placement else ""), FINDINGS
        )
    return Package(Path(folder), plan, linked)


def _placement_file(name: str, folder: Path, plan: Plan) -> Path:
    from mstarc.plan.placement import find_placement, known_placements

    beside = (folder / plan.spec.path).resolve().parent
    path = find_placement(name, beside)
    if path.is_file():
        return path
    known = known_placements(beside)
    raise Failure(
        f"there is no placement `{name}`", USAGE, help=f"placements here: {', '.join(known)}" if known else ""
    )
