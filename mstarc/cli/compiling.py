"""`mstarc compile`: write a spec's package, or compare packages on disk with what their specs give. Takes paths; writes files or diffs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mstarc.cli.checking import single_model
from mstarc.cli.findings import painted_diff, write_checked
from mstarc.cli.guard import FINDINGS, INTERNAL, OK, STALE, USAGE, Failure, say

if TYPE_CHECKING:
    from mstarc.codegen.package import Compiled, Problem


def run_compile(paths: Sequence[str], output: Path | None, check: bool) -> int:
    """Compile one spec to a folder, or with `check` compare. Status 3: a package is not what its spec gives."""
    if check:
        if output is not None:
            raise Failure("`--check` writes nothing, so it takes no `-o`", USAGE)
        return check_packages([Path(path) for path in paths])
    if len(paths) != 1:
        raise Failure("name one .walk file to compile" + (f", not {len(paths)}" if paths else ""), USAGE)
    if Path(paths[0]).is_dir():
        raise Failure(f"`{paths[0]}` is a folder; name the .walk file to compile", USAGE)
    if output is None:
        name = Path(paths[0]).stem
        raise Failure("say where the package goes", USAGE, help=f"mstarc compile {paths[0]} -o generated/{name}")
    return compile_to(single_model(paths[0]), output)


def compile_to(spec: str, folder: Path) -> int:
    """Write the package of a spec. Nothing is written if the spec has errors."""
    from mstarc.codegen.package import compile_model, write_package

    _refuse_strangers(folder)
    compiled = compile_model(Path(spec), folder)
    status = _tell(compiled)
    if status != OK:
        return status
    try:
        written = write_package(compiled.files, folder)
    except OSError as error:
        raise Failure(f"`{folder}` cannot be written: {error.strerror or error}", USAGE) from None
    for path in written:
        print(path)
    if not written:
        say(f"{folder} is up to date")
    return OK


def _refuse_strangers(folder: Path) -> None:
    """A folder that holds something else is not turned into a package."""
    if folder.exists() and not folder.is_dir():
        raise Failure(f"`{folder}` is a file; `-o` names the folder of the package", USAGE)
    if not folder.is_dir() or (folder / "plan.json").is_file():
        return
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "__pycache__")))
    if others:
        raise Failure(
            f"`{folder}` holds {others[0]} and is no generated package", USAGE, help="name a new or an empty folder"
        )


def _tell(compiled: Compiled) -> int:
    """Write what was found; give 0, 1 or 70."""
    checked = compiled.model.checked
    write_checked(checked)
    if compiled.fault is not None:
        say(f"error: {_fault(compiled)}")
        return FINDINGS
    if compiled.files:
        return OK
    return INTERNAL if checked.exit_code() == INTERNAL else FINDINGS


def _fault(compiled: Compiled) -> str:
    """What is not built, with its place."""
    fault = compiled.fault
    source = compiled.model.checked.sources.get(fault.span.file) if fault is not None else None
    place = f"{source.path}:{source.line_of(fault.span.start)}: " if fault is not None and source is not None else ""
    return f"{place}{fault}"


# ------------------------------------------------------------------------------------------------------------ comparing


def check_packages(paths: Sequence[Path]) -> int:
    """Compare packages: these, or all below this folder. Diffs go to standard output, what to do to standard error.

    A spec without a package is a fault only if it can be compiled.
    """
    from mstarc.codegen.package import check_package, compile_model

    packages, lacking = _packages(paths)
    status = OK
    for package in packages:
        problems, compiled = check_package(package)
        broken = any(problem.kind == "broken" for problem in problems)
        if compiled is not None and broken:
            status = max(status, _tell(compiled))
        elif problems:
            status = max(status, STALE)
        _show(problems)
    for spec in lacking:
        compiled = compile_model(spec, Path("generated") / spec.stem)
        if compiled.fault is not None:
            say(f"no package: {_fault(compiled)}")
            continue
        say(f"missing: {spec} has no package")
        say(f"  run: mstarc compile {spec} -o generated/{spec.stem}")
        status = max(status, STALE)
    if status == OK:
        say(f"{len(packages)} package{'' if len(packages) == 1 else 's'} up to date")
    return status


def _packages(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """(packages to compare, specs that should have one). Raises Failure if there are none."""
    from mstarc.codegen.package import find_packages

    for path in paths:
        if not path.is_dir():
            what = "is a file; name the folder of a package" if path.exists() else "does not exist"
            raise Failure(f"`{path}` {what}", USAGE)
    if paths:
        return list(paths), []
    packages, lacking = find_packages(Path())
    if not packages and not lacking:
        raise Failure(
            "there is no package below this folder: no generated/plan.json, no generated/*/plan.json, no examples/*/generated/plan.json",
            USAGE,
        )
    return packages, lacking


def _show(problems: Iterable[Problem]) -> None:
    """Each problem, and each repair once."""
    repairs: dict[str, None] = {}
    for problem in problems:
        if problem.diff:
            sys.stdout.write(painted_diff(problem.diff) + "\n")
            sys.stdout.flush()
        say(f"{problem.kind}: {problem.path} {problem.text}")
        if problem.repair:
            repairs[problem.repair] = None
    for repair in repairs:
        say(f"  run: {repair}")
