"""Generated packages on disk: reading and linking one, with errors as findings. Takes folders and placements; gives linked programs.

Where a node's checkpoint is there, its own sizes take the place of those that the binding holds: one package serves every checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstarc.binding import nearest
from mstarc.cli.damage import differs, report_damage
from mstarc.cli.findings import write_findings
from mstarc.cli.guard import FINDINGS, USAGE, Failure, reader_left, say
from mstarc.diagnostics.core import Collector
from mstarc.ir.errors import IrTextError

if TYPE_CHECKING:
    from mstarc.plan.model import Plan
    from mstarc.plan.placement import Placement
    from mstarc_runtime.abi.linked import Linked


WRITE = "write it with `mstarc compile SPEC -o DIR`"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that links. limited: it does, but the runtime cannot run it under this placement."""

    folder: Path
    plan: Plan
    linked: Linked
    placement: Placement
    overrides: Mapping[str, Any]
    limited: bool = False


def read_package(folder: str) -> Plan:
    """The plan of a generated package. Raises Failure."""
    from mstarc.plan.model import PlanError, read_plan

    path = Path(folder)
    if not path.is_dir():
        if path.exists():
            raise Failure(f"`{folder}` is a file; name the folder that `mstarc compile -o` wrote", USAGE)
        raise Failure(f"`{folder}` does not exist", USAGE, help=f"looked at {path.absolute()}")
    if not (path / "plan.json").is_file():
        raise Failure(f"`{folder}` is no generated package: it has no plan.json", USAGE, help=WRITE)
    try:
        return read_plan(path)
    except PlanError as error:
        report_damage(path, str(error), error.at)
        raise Failure(f"`{folder}` cannot be read") from None


def link_package(
    folder: str, placement: str | None, checkpoints: Mapping[str, str] | None = None, looking: bool = False
) -> Package:
    """The package under a placement: a path, or a name in specs/placements or beside the spec. Raises Failure after the findings.

    checkpoints: paths by name, instead of those of the binding. looking: it will not be run, so what the runtime cannot run yet is
    reported and no failure.
    """
    from mstarc.plan.link import link
    from mstarc.plan.placement import Placement, read_placement

    plan = _bound_to(read_package(folder), checkpoints or {})
    _warn_if_stale(Path(folder), plan)
    report, limits = Collector(), Collector()
    placed = (
        Placement() if placement is None else read_placement(_placement_file(placement, Path(folder), plan), report)
    )
    with undamaged(Path(folder)):
        overrides = checkpoint_config(plan)
        linked = None if placed is None else link(plan, placed, Path(folder), report, overrides, limits)
    write_findings((*report.findings(), *limits.findings()))
    if linked is None or placed is None or (limits.failed and not looking):
        raise Failure(
            f"`{folder}` cannot be linked" + (f" under placement `{placement}`" if placement else ""), FINDINGS
        )
    return Package(Path(folder), plan, linked, placed, overrides, limits.failed)


def spec_of(folder: Path, plan: Plan) -> str:
    """The path of the spec that a package was made from, as seen from here."""
    return os.path.normpath(folder / plan.spec.path)


def _warn_if_stale(folder: Path, plan: Plan) -> None:
    """One line if the spec or its binding is there and not what the package was made from: what is there runs all the same."""
    from mstarc.plan.model import sha256_of

    spec, binding = spec_of(folder, plan), os.path.normpath(folder / plan.spec.binding)
    try:
        texts = [Path(path).read_bytes().decode() if Path(path).is_file() else "" for path in (spec, binding)]
    except (OSError, UnicodeDecodeError):
        texts = []  # not as it was: the compiler reads UTF-8 only
    if Path(spec).is_file() and (not texts or sha256_of(*texts) != plan.spec.digest):
        changed = f"{spec} or {Path(binding).name} has changed since `{folder}` was made from it"
        say(f"warning: {changed}; run: mstarc compile {spec} -o {folder}")


@contextmanager
def undamaged(folder: Path) -> Iterator[None]:
    """What is raised over a package that is not as its spec and this compiler give it is damage, told in a Failure; else it is ours."""
    try:
        yield
    except Failure:
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and reader_left(sys.stdout):
            raise
        if not differs(folder):
            raise
        why = (
            f"{type(error).__name__}: {error}"
            if not isinstance(error, IrTextError)
            else f"it holds no IR: {error.what}"
        )
        report_damage(folder, f"`{folder}` cannot be read as a package: {why.splitlines()[0][:200]}")
        raise Failure(f"`{folder}` cannot be used as it is") from error


def _bound_to(plan: Plan, checkpoints: Mapping[str, str]) -> Plan:
    """The plan with these paths of checkpoints. Raises Failure for a name that it lacks and for a path that does not exist."""
    from msgspec.structs import replace

    known = plan.binding.checkpoints
    for name, path in checkpoints.items():
        if name not in known:
            near = nearest(name, known)
            listed = f"did you mean `{near}`?" if near else f"it has {', '.join(known) or 'none'}"
            raise Failure(f"model `{plan.model}` has no checkpoint `{name}`", USAGE, help=listed)
        if not Path(path).exists():
            raise Failure(f"checkpoint `{name}`: `{path}` does not exist", USAGE)
    given = {name: {"path": path} for name, path in checkpoints.items()}
    return replace(plan, binding=replace(plan.binding, checkpoints={**known, **given}))


def checkpoint_config(plan: Plan) -> dict[str, Any]:
    """`node.key` -> value, of the checkpoints that lie at a path and are there. Raises Failure if one cannot be read.

    Components that know how to read them are imported for it, and with them what they need.
    """
    found: dict[str, Any] = {}
    for node, component in plan.binding.components.items():
        name = component.get("checkpoint", "")
        given = plan.binding.checkpoints.get(name, {})
        if "path" in given and Path(given["path"]).exists():
            values = _config_of(name, given, component["class"], plan.binding.config.get(node, {}))
            found.update({f"{node}.{key}": value for key, value in values.items()})
    return found


def _config_of(name: str, given: Mapping[str, Any], dotted: str, section: Mapping[str, Any]) -> dict[str, Any]:
    from mstarc_runtime.abi.linked import CheckpointLink
    from mstarc_runtime.checkpoints import config_of
    from mstarc_runtime.errors import LoadError

    import_from_here()
    try:
        return config_of(dotted, CheckpointLink(name=name, **given), section)
    except LoadError as error:
        raise Failure(f"checkpoint `{name}`: {error}") from None


def import_from_here() -> None:
    """Let components be found in the project that the command runs in."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _placement_file(name: str, folder: Path, plan: Plan) -> Path:
    from mstarc.plan.placement import find_placement, known_placements, placement_paths

    beside = Path(spec_of(folder, plan)).parent
    path = find_placement(name, beside)
    if path.is_file():
        return path
    known = known_placements(beside)
    there = f"; the placements here: {', '.join(known)}" if known else ""
    raise Failure(
        f"there is no placement `{name}`",
        USAGE,
        help=f"looked for {', '.join(map(str, placement_paths(name, beside)))}{there}",
    )
