"""What commands make of damaged files: each ends with a finding, a plain error or a product, in time, and never with a traceback.

A case is numbered; its number decides the model, the file and the damage. The verbs run in this process, in the outermost frame of the
command line.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from unittest import mock

from mstarc.cli.checking import CheckCall, run_check
from mstarc.cli.compiling import run_compile
from mstarc.cli.costs import CostCall
from mstarc.cli.formatting import FormatCall, run_format
from mstarc.cli.guard import OK, Failure, set_debug, shielded
from mstarc.cli.packages import link_package, undamaged
from mstarc.cli.passes import IrCall, run_ir
from mstarc.cli.planning import run_plan
from mstarc.cli.serving import OneCall, call_params, input_kinds
from mstarc.cli.showing import run_graph
from mstarc_runtime.errors import LoadError
from mstarc_runtime.package import load_conductor, load_worker
from tests.adversarial.mutations import edited, mutated

ROOT = Path(__file__).resolve().parents[2]
SPECS = (*sorted((ROOT / "specs").glob("*.walk")), ROOT / "examples/hello/hello.walk")
COMMAND_S = 5  # of CPU time for one verb: beyond it, it hangs
PLACED = {  # packages with a placement that fits
    "ask": "2xcpu",
    "bagel": "3xh100",
    "orpheus": "orpheus_2xcpu",
    "pi05": "1xcpu",
    "qwen3_omni": "omni_2xh200",
    "vjepa2": "1xcpu",
    "vjepa2_ac": "1xh200",
    "whisper": "1xcpu",
}
SHOWN = 40  # lines of a failure's output and of the damage


class TooSlow(BaseException):
    """Not an Exception: the compiler, which makes a finding of whatever it raises, lets this one through."""


@contextlib.contextmanager
def limited(what: str) -> Iterator[None]:
    """Raises TooSlow if the block computes for longer than COMMAND_S seconds; what else the machine does has no part in that."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"{what} took longer than {COMMAND_S} s")

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, COMMAND_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def shell(folder: Path) -> Iterator[None]:
    """Verbs run in a folder, and what they remember is kept there."""
    with contextlib.chdir(folder), mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / ".cache")}):
        yield


def status_of(what: str, verb: Callable[[], int]) -> int:
    """The exit status of a verb: clean, findings, usage or stale. AssertionError for any other, or if it shows a traceback."""
    out, err = io.StringIO(), io.StringIO()
    set_debug(True)
    with limited(what), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = shielded(verb)
    told = err.getvalue()
    assert status in (0, 1, 2, 3) and "Traceback" not in told, f"{what} gave {status}:\n{_end(told)}"
    assert status == 0 or told or out.getvalue(), f"{what} gave {status} and said nothing"
    return status


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-SHOWN:])


@contextlib.contextmanager
def showing(path: Path, before: bytes) -> Iterator[None]:
    """Notes on what is raised how a file differs from what it was."""
    try:
        yield
    except BaseException as error:
        old, new = (data.decode("utf-8", "backslashreplace").split("\n") for data in (before, path.read_bytes()))
        lines = list(difflib.unified_diff(old, new, path.name, "damaged", lineterm="", n=1))
        more = [f"… {len(lines) - SHOWN} lines more"] if len(lines) > SHOWN else []
        error.add_note("\n".join(line[:400] for line in (*lines[:SHOWN], *more)))
        raise


def damaged_model(number: int, folder: Path) -> str:
    """What becomes of a spec or binding that is damaged."""
    draw = random.Random(f"model {number}")
    spec = SPECS[number % len(SPECS)]
    files = {path.name: path.read_bytes() for path in (spec, spec.with_suffix(".yaml"))}
    name = sorted(files)[number // len(SPECS) % 2]
    before = files[name]
    files[name] = mutated(draw, before)
    for other, data in files.items():
        (folder / other).write_bytes(data)
    with showing(folder / name, before):
        return model_becomes(spec.name, folder)


def model_becomes(spec: str, folder: Path) -> str:
    """`refused`, or `linked` or `not linked` after generated code compiled: of a spec in a folder."""
    with shell(folder):
        return _becomes(spec)


def _becomes(spec: str) -> str:
    checked = status_of("check", lambda: run_check(CheckCall((spec,))))
    status_of("fmt", lambda: run_format(FormatCall((spec,), diff=True)))
    if checked != 0 or status_of("compile", lambda: run_compile([spec], Path("out"), False)) != 0:
        return "refused"
    for path in Path("out").glob("*.py"):
        compile(path.read_bytes(), str(path), "exec")
    linked = status_of("plan", lambda: run_plan("out", None, (), "text", CostCall()))
    return "linked" if linked == 0 else "not linked"


# -------------------------------------------------------------------------------------------------------------- packages


def damaged_package(number: int, folder: Path) -> str:
    """What becomes of a generated package and its placement, of which one file is damaged: `fits`, `stale` or `refused`."""
    draw = random.Random(f"package {number}")
    name = list(PLACED)[number % len(PLACED)]
    sources = {f"specs/{name}{end}": ROOT / f"specs/{name}{end}" for end in (".walk", ".yaml")}
    sources |= {f"generated/{name}/{p.name}": p for p in sorted((ROOT / "generated" / name).glob("*.*"))}
    sources["placed.toml"] = ROOT / f"specs/placements/{PLACED[name]}.toml"
    files = {path: source.read_bytes() for path, source in sources.items()}
    plan = f"generated/{name}/plan.json"
    match number // len(PLACED) % 6:
        case 0:
            target, damage = "placed.toml", mutated
        case 1:
            target, damage = plan, mutated
        case 2 | 3 | 4:
            target, damage = plan, edited
        case _:
            target, damage = draw.choice([f for f in files if f.endswith(".py") and files[f]]), mutated
    before = files[target]
    files[target] = damage(draw, before)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    with showing(folder / target, before), shell(folder):
        return _fits(f"generated/{name}", "placed.toml")


def _fits(package: str, placement: str) -> str:
    fresh = status_of("compile --check", lambda: run_compile([package], None, True))
    status_of("graph", lambda: run_graph(package, None, "mmd"))
    status_of("ir", lambda: run_ir(IrCall(package)))
    status_of("plan --json", lambda: run_plan(package, placement, (), "json", CostCall()))
    status_of("plan", lambda: run_plan(package, None, (), "text", CostCall()))
    status_of("load, placed", lambda: _load(package, placement))  # the runtime cannot run some of the placements yet
    if status_of("load", lambda: _load(package, None)) != OK:
        return "refused"
    return "fits" if fresh == OK else "stale"


def _load(package: str, placement: str | None) -> int:
    """What `run` and `call` do before they start processes."""
    linked = link_package(package, placement).linked
    with undamaged(Path(package)):
        try:
            program = load_conductor(linked)
            load_worker(linked)
        except LoadError as error:
            raise Failure(str(error)) from None
        input_kinds(program, None)
        call_params(OneCall(package), program)
    return OK
