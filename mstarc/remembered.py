"""Checks that need not be run again: the findings of a model are kept until its files or the compiler change.

Takes paths; gives what `workspace.check` gives, bit for bit, and imports no parser if nothing has changed. An entry is one JSON file of
the user's cache folder, named by the model's path; its key is a digest of the compiler's sources, the installed distributions, Python,
the spec and the binding. Entries are written by rename, so runs side by side are safe; what cannot be read or written is left aside.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from mstarc.checked import Checked, find_models, joined
from mstarc.diagnostics.core import Diagnostic
from mstarc.source import SourceFile

_SOURCES = (".py", ".lark", ".tables")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One file of the cache."""

    key: str
    findings: tuple[Diagnostic, ...]


def check(paths: Sequence[str | Path], processes: int = 1) -> Checked:
    """Check files, and folders with every model under them, in the order of names. With two processes, one half is checked by each."""
    files, missing = find_models(paths)
    compiler = compiler_digest()
    if processes > 1:
        _check_beside([name for name in files if _entry_of(name, compiler) is None], compiler)
    return joined((_checked(name, compiler) for name in files), missing)


def _check_beside(names: Sequence[str], compiler: str) -> None:
    """Check half of the models in a second process, while this one checks the rest: each leaves its findings in the cache.

    What the second process does not leave there, because of a fault or for want of a writable folder, is checked again by the caller.
    """
    if len(names) < 2 or not hasattr(os, "fork"):
        return
    from mstarc import workspace  # noqa: F401  both processes share what is imported before the fork
    from mstarc.syntax.machine import machine

    machine()
    mine, other = _halves(names)
    child = os.fork()
    try:
        for name in mine if child else other:
            _checked(name, compiler)
    finally:
        if not child:
            os._exit(0)
        os.waitpid(child, 0)


def _halves(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Two lists of about equal numbers of bytes."""
    halves: tuple[list[str], list[str]] = ([], [])
    sizes = [0, 0]
    for size, name in sorted(((_size(name), name) for name in names), reverse=True):
        lighter = sizes.index(min(sizes))
        halves[lighter].append(name)
        sizes[lighter] += size
    return halves


def _size(name: str) -> int:
    try:
        return os.path.getsize(name)
    except OSError:
        return 0


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/mstarc`, or `~/.cache/mstarc`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mstarc" / "check"


def compiler_digest() -> str:
    """A digest of everything but the model that decides about findings."""
    digest = hashlib.sha256(repr((sys.version_info, *_distributions())).encode())
    package = Path(__file__).parent
    spec = find_spec("mstarc_runtime")  # the checks share its arithmetic of streams
    abi = [Path(folder) / "abi" for folder in (spec.submodule_search_locations or ()) if spec] if spec else []
    for root in (package, *abi):
        for path in _sources(root):
            digest.update(f"{path.name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _sources(root: Path) -> Iterator[Path]:
    """The files below a folder that decide about findings, in an order of their own."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (Path(folder) / name for name in sorted(names) if name.endswith(_SOURCES))


def _distributions() -> list[str]:
    """Name and version of what is installed beside the libraries that a check uses."""
    beside = Path(msgspec.__file__).parents[1]
    return sorted(name for name in os.listdir(beside) if name.endswith(".dist-info"))


def _checked(name: str, compiler: str) -> Checked:
    """What a model's check gives, from its entry if that is of these files and this compiler."""
    kept = _entry_of(name, compiler)
    if kept is not None:
        return kept
    checked = _run(name)
    read = _read(name)
    if read is not None and not checked.faults and checked.sources == read[0]:
        _keep(_path_of(name), _Entry(_key(name, read[1], compiler), checked.findings))
    return checked


def _entry_of(name: str, compiler: str) -> Checked | None:
    """What is remembered about a model, if nothing has changed."""
    read = _read(name)
    kept = _kept(_path_of(name)) if read is not None else None
    if read is None or kept is None or kept.key != _key(name, read[1], compiler):
        return None
    return Checked(kept.findings, read[0])


def _key(name: str, raw: Sequence[bytes | None], compiler: str) -> str:
    return hashlib.sha256(repr((compiler, name, raw)).encode()).hexdigest()


def _path_of(name: str) -> Path | None:
    """The file of a model's entry; None without a working directory or a home."""
    try:
        return cache_folder() / (hashlib.sha256(repr((os.getcwd(), name)).encode()).hexdigest()[:32] + ".json")
    except (OSError, RuntimeError):
        return None


def _run(name: str) -> Checked:
    from mstarc.workspace import load_model

    return load_model(name).checked


def _read(name: str) -> tuple[dict[str, SourceFile], list[bytes | None]] | None:
    """The sources of a model and their bytes; None if one cannot be read: then the check says why."""
    sources: dict[str, SourceFile] = {}
    raw: list[bytes | None] = []
    for path in (name, str(Path(name).with_suffix(".yaml"))):
        try:
            raw.append(Path(path).read_bytes())
            sources[path] = SourceFile(path, raw[-1].decode("utf-8") if raw[-1] is not None else "")
        except FileNotFoundError:
            raw.append(None)
        except (OSError, UnicodeDecodeError):
            return None
    return sources, raw


def _kept(path: Path | None) -> _Entry | None:
    if path is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Entry)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _keep(path: Path | None, entry: _Entry) -> None:
    if path is None:
        return
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(entry))
        temporary.replace(path)
    except OSError:
        return
