"""Keeps what is needed to see a fault of mstarc again: the inputs, the pass, the IR before it, versions and the traceback.

Takes an exception and the command line; writes a new folder `mstarc-crash-DIGEST` (in the working directory, else among the temporary
files) and gives the command that reproduces the fault. Nothing here raises, and no file that exists is touched.
"""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mstarc.cli.guard import debugging, say, session_args
from mstarc.ir.errors import PassFailed

LARGEST = 1 << 20  # bytes of an input that is copied


def tell_fault(error: BaseException, what: str = "") -> None:
    """Say that it happened, where it is kept and how to see it again; with --debug, the traceback."""
    if debugging():
        traceback.print_exception(error, file=sys.stderr)
    if what:
        say(f"internal error: {what}")
    args = tuple(arg for arg in session_args() if arg != "--debug")
    folder = keep(error, args)
    if folder is not None:
        say(f"  this is a fault of mstarc, not of your files: report it with the folder {folder}")
    say(f"  to reproduce: {command_of(error, args, folder)}")


def command_of(error: BaseException, args: Sequence[str], folder: Path | None) -> str:
    """The command that shows the traceback: on the kept IR if a pass of the pipeline failed, else the same one again."""
    if isinstance(error, PassFailed) and error.before is not None and folder is not None and _is_listed(error.name):
        return shlex.join(["mstarc", "--debug", "opt", str(folder / "before.ir"), "-p", error.name])
    return shlex.join(["mstarc", "--debug", *args])


def _is_listed(name: str) -> bool:
    from mstarc.passes import pipeline

    return any(p.name == name for p in pipeline.PIPELINE)


def keep(error: BaseException, args: Sequence[str]) -> Path | None:
    """Write the folder; None if there is no place for it. The same fault on the same inputs has the same folder."""
    try:
        files = {"crash.txt": _story(error, args).encode(), **_before(error), **_inputs(args, error)}
        digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:8]
    except Exception:  # the fault may have left anything behind; its story alone is better than a second fault
        return None
    for home in (crash_home(), Path(tempfile.gettempdir())):
        folder = home / f"mstarc-crash-{digest}"
        try:
            _write(folder, files)
        except OSError:
            continue
        return folder
    return None


def crash_home() -> Path:
    """Where crash folders go first."""
    return Path(".")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)


def _story(error: BaseException, args: Sequence[str]) -> str:
    from mstarc import __version__

    name = error.name if isinstance(error, PassFailed) else "none"
    head = [
        f"command: {shlex.join(['mstarc', *args])}",
        f"pass:    {name}",
        f"mstarc:  {__version__}",
        f"python:  {platform.python_version()} on {platform.system()} {platform.machine()}",
    ]
    return "\n".join(head) + "\n\n" + "".join(traceback.format_exception(error))


def _before(error: BaseException) -> dict[str, bytes]:
    """The IR that the pass was given, if it can be printed."""
    if not isinstance(error, PassFailed) or error.before is None:
        return {}
    from mstarc.ir.text import print_program

    try:
        return {"before.ir": print_program(error.before).encode()}
    except Exception as second:
        return {"before.txt": f"{error.before!r}\n(not printable as IR: {second!r})\n".encode()}


def _inputs(args: Sequence[str], error: BaseException) -> dict[str, bytes]:
    """The files that the command names, specs with their bindings; of a model that failed among many, that model."""
    named = [Path(arg) for arg in (*args, *_model_of(error))]
    found: dict[str, bytes] = {}
    for path in (beside for name in named for beside in _with_binding(name)):
        try:
            if path.is_file() and path.stat().st_size <= LARGEST:
                found.setdefault(path.name, path.read_bytes())
        except OSError:
            continue
    return found


def _model_of(error: BaseException) -> tuple[str, ...]:
    return (error.model,) if isinstance(error, PassFailed) and error.model else ()


def _with_binding(path: Path) -> Iterator[Path]:
    yield path
    if path.suffix == ".walk":
        yield path.with_suffix(".yaml")
    if (path / "plan.json").is_file():
        yield path / "plan.json"


__all__ = ["crash_home", "keep", "tell_fault"]
