"""One model to the files of its package, written to a folder or compared with it. Takes paths; gives `Compiled` or problems.

The only paths inside a package are relative to it, so two checkouts give the same bytes.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from mstarc import __version__
from mstarc.binding_file import Binding
from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.render import render
from mstarc.ir.errors import PassFailed
from mstarc.passes.pipeline import rewritten
from mstarc.plan.model import NAME, Plan, PlanError, SpecPlan, from_text, read_plan, sha256_of, to_text
from mstarc.plan.verified import PlanFault, verified_plan
from mstarc.source import SourceFile
from mstarc.workspace import Model, load_model

Kind: TypeAlias = Literal["stale", "hand-edited", "orphan", "missing", "broken"]
LINES = 400  # the most lines of a generated file: beyond it the runtime lacks a verb


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model with the files of its package (name -> text); none if it has errors or `fault` says what is not built."""

    model: Model
    files: dict[str, str]
    plan: Plan | None = None
    fault: NotBuilt | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One way in which a folder differs from what its spec gives. diff: from what is there to what should be."""

    kind: Kind
    path: Path
    text: str
    diff: str = ""
    repair: str = ""


def compile_model(spec: Path, package: Path) -> Compiled:
    """The files of a spec's package as they belong in a folder. Writes nothing."""
    model = load_model(spec)
    if model.failed or model.program is None:
        return Compiled(model, {})
    source = model.checked.sources[str(spec)]
    binding_path = spec.with_suffix(".yaml")
    beside = model.checked.sources.get(str(binding_path), SourceFile(str(binding_path), ""))
    where = SpecPlan(
        path=_relative(spec, package),
        binding=_relative(binding_path, package),
        digest=sha256_of(source.text, beside.text),
    )
    # Configs stay open in the package: a checkpoint may say other values at link.
    program = replace(rewritten(model.bound or model.program), configs=model.program.configs)
    try:
        files = render(program, spec.name)
        _check_budget(files, model)
    except NotBuilt as fault:
        return Compiled(model, {}, None, fault)
    try:
        plan = verified_plan(program, model.binding or Binding(), where, source)
    except PlanFault as error:
        raise PassFailed("verify-plan", error, program) from error
    plan = msgspec.structs.replace(plan, files={name: sha256_of(text) for name, text in sorted(files.items())})
    return Compiled(model, files | {NAME: to_text(plan)}, plan)


def _check_budget(files: dict[str, str], model: Model) -> None:
    for name, text in files.items():
        count = text.count("\n")
        if count > LINES and model.program is not None:
            raise NotBuilt(f"{name} of {count} lines; a generated file has at most {LINES}", model.program.span)


def _relative(path: Path, package: Path) -> str:
    return Path(os.path.relpath(path.resolve(), package.resolve())).as_posix()


def write_package(files: dict[str, str], package: Path) -> list[Path]:
    """Write what differs, each file by rename; gives the paths that were written. Raises OSError."""
    package.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in sorted(files.items()):
        path = package / name
        if path.is_file() and path.read_bytes() == text.encode():
            continue
        temporary = path.with_name(f".{name}.{os.getpid()}")
        temporary.write_bytes(text.encode())
        temporary.replace(path)
        written.append(path)
    return written


# -------------------------------------------------------------------------------------------------------------- checking


def find_packages(root: Path) -> tuple[list[Path], list[Path]]:
    """(the package `generated`, or those under it, and those of `examples`; specs of `specs` that have none)."""
    alone = root / "generated"
    own = [alone] if (alone / NAME).is_file() else [*root.glob("generated/*")]
    folders = [*own, *root.glob("examples/*/generated")]
    packages = sorted(folder for folder in folders if folder.is_dir() and _own_files(folder))
    names = {folder.name for folder in packages}
    specs = sorted(root.glob("specs/*.walk"))
    return packages, [spec for spec in specs if spec.stem not in names]


def _own_files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != "__pycache__" and not p.name.startswith("."))


def check_package(package: Path) -> tuple[list[Problem], Compiled | None]:
    """What differs from what the package's spec gives now."""
    try:
        plan = read_plan(package)
    except PlanError as error:
        repair = f"mstarc compile SPEC -o {package}, or delete the folder"
        return [Problem("orphan", package, f"nothing says which spec it is made from: {error}", "", repair)], None
    spec = Path(os.path.normpath(package / plan.spec.path))
    if not spec.is_file():
        return [Problem("orphan", package, f"its spec {spec} does not exist", "", f"rm -r {package}")], None
    compiled = compile_model(spec, package)
    repair = f"mstarc compile {spec} -o {package}"
    if not compiled.files:
        return [Problem("broken", spec, "the spec cannot be compiled", "", f"mstarc check {spec}")], compiled
    problems = [
        problem
        for name, text in sorted(compiled.files.items())
        if (problem := _compare(package / name, text, plan, compiled, repair)) is not None
    ]
    for name in _own_files(package):
        if name not in compiled.files:
            problems.append(Problem("orphan", package / name, "no file of the package", "", f"rm {package / name}"))
    return problems, compiled


def _compare(path: Path, text: str, plan: Plan, compiled: Compiled, repair: str) -> Problem | None:
    if not path.is_file():
        return Problem("missing", path, "the package has no such file", "", repair)
    try:
        found = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        return Problem("broken", path, f"cannot be read: {error.strerror or error}", "", repair)
    if found == text:
        return None
    kind = _kind(path, found, plan, compiled)
    says = "was edited by hand" if kind == "hand-edited" else "is not what the spec and this compiler give now"
    return Problem(kind, path, says, _diff(path, found, text), repair)


def _kind(path: Path, found: str, plan: Plan, compiled: Compiled) -> Kind:
    """Whether the file is older than its spec or compiler, or no compiler wrote it."""
    if path.name != NAME:
        return "stale" if plan.files.get(path.name) == sha256_of(found) else "hand-edited"
    now = compiled.plan
    if now is None or plan.spec.digest != now.spec.digest or plan.compiler != __version__ or plan.files != now.files:
        return "stale" if to_text(from_text(found)) == found else "hand-edited"
    return "hand-edited"


def _diff(path: Path, found: str, text: str) -> str:
    lines = difflib.unified_diff(
        found.splitlines(), text.splitlines(), f"{path} (on disk)", f"{path} (compiled)", lineterm=""
    )
    return "\n".join(lines)
