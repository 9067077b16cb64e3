"""`mstarc ir` and `mstarc opt`: programs after passes. Take a spec (or a package, whose spec is read) or IR text; print.

The text of a dump is IR that reads back; facts stand behind it as comments. JSON is one object per dump:
`{"after": pass, "program": {…}, "facts": […]}`, and an array of them for `--after-all`.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mstarc.cli.findings import painted_diff
from mstarc.cli.guard import FINDINGS, OK, USAGE, Failure
from mstarc.cli.showing import read_model
from mstarc.ir.core import Program
from mstarc.ir.errors import IrTextError, VerifyError
from mstarc.ir.text import parse_program, print_program, to_json
from mstarc.ir.verify import verify
from mstarc.passes import pipeline
from mstarc.passes.pipeline import Pass, Step, find_pass, run_passes

#: what stands before the pipeline: the program as lowered, and with the binding's config values in place
LOWER, BIND = "lower", "bind"
FRONT = {LOWER: "the program as it is written", BIND: "config values of the binding put in place"}


@dataclass(frozen=True, slots=True)
class IrCall:
    """The arguments of one `ir`. At most one of `after`, `after_all` and `diff`."""

    path: str
    after: str | None = None
    after_all: bool = False
    diff: tuple[str, str] | None = None
    format: str = "text"


@dataclass(frozen=True, slots=True)
class OptCall:
    """The arguments of one `opt`. `passes` are names with commas between them."""

    file: str
    passes: str
    listed: bool
    format: str


def run_ir(call: IrCall) -> int:
    """Print the program after one pass, after all, or the difference between two. Status 1 if there is no program."""
    if (call.after is not None) + call.after_all + (call.diff is not None) > 1:
        raise Failure("`--after`, `--after-all` and `--diff` exclude each other", USAGE)
    if call.diff is not None and call.format == "json":
        raise Failure("`--diff` compares texts, so it takes no `--format json`", USAGE)
    wanted = call.diff or (call.after or LOWER,)
    for name in wanted:
        _known(name)
    last = len(pipeline.PIPELINE) if call.after_all else max(map(_place, wanted))
    steps = list(_steps(call.path, last))
    if call.diff is not None:
        sys.stdout.write(_difference(*(_at(steps, name) for name in call.diff)))
    elif call.after_all:
        told = _json([_tree(step) for step in steps]) if call.format == "json" else "".join(_told(steps))
        sys.stdout.write(told)
    else:
        sys.stdout.write(dump(_at(steps, wanted[0]), call.format))
    return OK


def _place(name: str) -> int:
    """How many passes of the pipeline run up to a name, itself included."""
    return 0 if name in FRONT else [p.name for p in pipeline.PIPELINE].index(name) + 1


def _steps(path: str, last: int) -> Iterator[Step]:
    """The program as lowered, with config values, and after each of the first passes."""
    model = read_model(path)
    assert model.program is not None and model.bound is not None
    yield Step(LOWER, model.program)
    if model.binding is None and last:
        raise Failure(f"`{model.path}` has no binding that can be read, and passes need its config values")
    if model.binding is not None:
        yield Step(BIND, model.bound)
    if last and model.failed:
        raise Failure("the spec has errors, and passes run on checked programs only")
    yield from run_passes(model.bound, pipeline.PIPELINE[:last], verified=True)


def _at(steps: Sequence[Step], name: str) -> Step:
    found = next((step for step in steps if step.name == name), None)
    if found is None:
        raise Failure("there is no binding that can be read, so there is nothing to put in place")
    return found


def _told(steps: Sequence[Step]) -> Iterator[str]:
    """Each step under its name: the text if it changes the program, and the facts."""
    before: Program | None = None
    for step in steps:
        changed = step.program != before
        text = (print_program(step.program) if changed else "") + _comments(step.facts)
        yield f"# after {step.name}{'' if text else ': nothing changes'}\n{text}\n"
        before = step.program


def _difference(old: Step, new: Step) -> str:
    a, b = (dump(step, "text").splitlines(keepends=True) for step in (old, new))
    return painted_diff("".join(difflib.unified_diff(a, b, f"after {old.name}", f"after {new.name}")))


def dump(step: Step, format: str) -> str:
    """A program and facts as text, or as one JSON object."""
    return _json(_tree(step)) if format == "json" else print_program(step.program) + _comments(step.facts)


def _tree(step: Step) -> dict[str, Any]:
    return {"after": step.name, "program": json.loads(to_json(step.program)), "facts": list(step.facts)}


def _json(tree: Any) -> str:
    return json.dumps(tree, indent=1, ensure_ascii=False) + "\n"


def _comments(lines: Sequence[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


# ------------------------------------------------------------------------------------------------------------------ opt


def run_opt(call: OptCall) -> int:
    """Run passes on IR text. Status 1 if the text is no IR or breaks the rules of the IR."""
    if call.listed:
        sys.stdout.write("".join(f"{name:20}  {summary}\n" for name, summary in _all_passes()))
        return OK
    chosen = [_known_pass(name.strip()) for name in call.passes.split(",") if name.strip()]
    try:
        program = parse_program(_read(call.file))
        verify(program)
    except (IrTextError, VerifyError) as error:
        raise Failure(f"{_named(call.file)}: {error}", FINDINGS) from None
    except RecursionError:
        raise Failure(f"{_named(call.file)} is nested too deeply", FINDINGS) from None
    steps = list(run_passes(program, chosen, verified=True))
    result = Step(
        ",".join(p.name for p in chosen),
        steps[-1].program if steps else program,
        tuple(f"{step.name}: {line}" for step in steps for line in step.facts),
    )
    sys.stdout.write(dump(result, call.format))
    return OK


def _named(file: str) -> str:
    return "standard input" if file == "-" else f"`{file}`"


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        with open(file, "rb") as opened:
            return opened.read().decode("utf-8")
    except OSError as error:
        raise Failure(f"{_named(file)} cannot be read: {error.strerror or error}", USAGE) from None
    except UnicodeDecodeError as error:
        raise Failure(f"{_named(file)} is not UTF-8 text: byte {error.start} cannot be decoded", USAGE) from None


def _all_passes() -> Iterator[tuple[str, str]]:
    yield from FRONT.items()
    yield from ((p.name, p.summary) for p in pipeline.PIPELINE)


def _known(name: str) -> None:
    """Raises Failure for a name that is no pass."""
    from mstarc.binding import nearest

    names = [known for known, _ in _all_passes()]
    if name not in names:
        near = nearest(name, names)
        listed = ", ".join(f"`{known}`" for known in names)
        raise Failure(
            f"there is no pass `{name}`" + (f"; did you mean `{near}`?" if near else ""),
            USAGE,
            help=f"passes: {listed}",
        )


def _known_pass(name: str) -> Pass:
    _known(name)
    if name in FRONT:
        raise Failure(f"`{name}` makes IR from a spec; it does not run on IR", USAGE)
    return find_pass(name)


__all__ = ["IrCall", "OptCall", "run_ir", "run_opt"]
