"""Checks that need not be run again: the findings of a model are kept until its files or the compiler change.

Takes paths; gives what `workspace.check` gives, bit for bit, and imports no parser if nothing has changed. An entry is one JSON file of
the user's cache folder, named by the model's path; its key is a digest of the compiler's sources, the installed distributions, Python,
the spec and the binding. Entries are written by rename, so runs side by side are safe; what cannot be read or written is left aside.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
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


def check(paths: Sequence[str | Path]) -> Checked:
    """Check files, and folders with every model under them, in the order of names."""
    files, missing = find_models(paths)
    compiler = compiler_digest()
    return joined((_checked(name, compiler) for name in files), missing)


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
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                if name.endswith(_SOURCES):
                    with open(os.path.join(folder, name), "rb") as file:
                        digest.update(f"{name}\n".encode() + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _distributions() -> list[str]:
    """Name and version of what is installed beside the parser library."""
    spec = find_spec("lark")
    if spec is None or spec.origin is None:
        return []
    return sorted(name for name in os.listdir(Path(spec.origin).parents[1]) if name.endswith(".dist-info"))


def _checked(name: str, compiler: str) -> Checked:
    """What a model's check gives, from its entry if that is of these files and this compiler."""
    read = _read(name)
    if read is None:
        return _run(name)
    sources, raw = read
    key = hashlib.sha256(repr((compiler, name, raw)).encode()).hexdigest()
    try:
        entry = cache_folder() / (hashlib.sha256(repr((os.getcwd(), name)).encode()).hexdigest()[:32] + ".json")
    except (OSError, RuntimeError):  # no working directory, no home
        return _run(name)
    kept = _kept(entry)
    if kept is not None and kept.key == key:
        return Checked(kept.findings, sources)
    checked = _run(name)
    if not checked.faults and checked.sources == sources:
        _keep(entry, _Entry(key, checked.findings))
    return checked


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


def _kept(path: Path) -> _Entry | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Entry)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _keep(path: Path, entry: _Entry) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(entry))
        temporary.replace(path)
    except OSError:
        return
