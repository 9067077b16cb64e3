"""Finds and verifies weights, and resolves dotted names: from a linked program to `Checkpoint`s, components and externs."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import logging
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from mstarc_runtime.abi.linked import CheckpointLink, Linked
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError, RuntimeFault, describe, meant
from mstarc_runtime.worker.results import ResultCheck

log = logging.getLogger("mstarc.weights")


def cache_root() -> Path:
    """Folder for derived tensors: `$XDG_CACHE_HOME/mstarc`, else `~/.cache/mstarc`. Safe to delete."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mstarc"


def find_checkpoint(link: CheckpointLink) -> Checkpoint:
    """Locate a checkpoint and check its digest. Raises LoadError that says what to install or which file is wrong."""
    if link.package:
        spec = _package(link.package)
        if spec is None or not spec.submodule_search_locations:
            raise LoadError(f"weights of `{link.name}`: package `{link.package}` is not installed (run `make weights`)")
        root = Path(next(iter(spec.submodule_search_locations)))
    else:
        root = Path(link.path)
    path = root / link.file if link.file else root
    if not path.exists():
        hint = "" if link.package else f"; `--checkpoint {link.name}=PATH` says where they are"
        raise LoadError(f"weights of `{link.name}`: {path} does not exist{hint}")
    if link.sha256 and not path.is_file():
        raise LoadError(f"weights of `{link.name}`: {path} is a folder, and a sha256 is that of a file")
    digest = link.sha256 or _stamp(path)
    if link.sha256:
        _verify(link, path)
    return Checkpoint(path=path, digest=digest, cache_dir=cache_root() / "weights")


def _package(name: str) -> ModuleSpec | None:
    """Where a package is, without importing it; None if it is not installed."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # of a parent package; of one that was imported in an unusual way
        return None


def _stamp(path: Path) -> str:
    stat = path.stat()
    return hashlib.sha256(f"{path}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()


def _verify(link: CheckpointLink, path: Path) -> None:
    """Compare sha256, once per (path, size, mtime): the outcome is kept beside the derived tensors."""
    record = cache_root() / "verified.json"
    stamp = _stamp(path)
    try:
        read = json.loads(record.read_text())
    except (OSError, ValueError):
        read = None
    known: dict[str, str] = read if isinstance(read, dict) else {}
    if known.get(stamp) == link.sha256:
        return
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LoadError(f"weights of `{link.name}`: {path} cannot be read: {error.strerror or error}") from None
    if found != link.sha256:
        raise LoadError(f"weights of `{link.name}`: {path.name} has sha256 {found[:16]}…, expected {link.sha256[:16]}…")
    known[stamp] = found
    temporary = record.with_suffix(f".{os.getpid()}")
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(known))
        temporary.replace(record)
    except OSError as error:  # a full or read-only disk costs the next start some seconds, nothing else
        _warn_once(f"{record} cannot be written ({error.strerror or error}); the next start verifies again")


@lru_cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def resolve(dotted: str) -> Any:
    """The object a dotted name stands for: `module.attribute[.attribute]`. Raises LoadError naming the missing part."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        name = ".".join(parts[:cut])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise LoadError(f"`{dotted}`: importing `{name}` failed: {error}") from error
        except Exception as error:
            raise LoadError(f"`{dotted}`: importing `{name}` failed: {describe(error)}") from error
        for attribute in parts[cut:]:
            if not hasattr(found, attribute):
                raise LoadError(f"`{dotted}`: `{name}` has no `{attribute}`{meant(attribute, names_in(found))}")
            found = getattr(found, attribute)
            name = f"{name}.{attribute}"
        return found
    where = "in the current folder, PYTHONPATH or the installed packages"
    near = meant(parts[0], (module.name for module in pkgutil.iter_modules()))
    raise LoadError(f"`{dotted}`: no module `{parts[0]}` {where}{near}")


def names_in(owner: Any) -> set[str]:
    """What a dotted name can name inside a module, a package or a class, but for what is private."""
    names = {*dir(owner), *(module.name for module in pkgutil.iter_modules(getattr(owner, "__path__", ())))}
    return {name for name in names if not name.startswith("_")}


@contextmanager
def bound_by(key: str) -> Iterator[None]:
    """Inside, a name that stands for nothing is told with the key of the binding that holds it."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"`{key}` of the binding: {error}") from error


def config_of(dotted: str, link: CheckpointLink, section: Mapping[str, Any]) -> dict[str, Any]:
    """Config values of a node as its checkpoint states them; {} if the component does not read any. Raises LoadError.

    A component class may have `config_values(checkpoint, section)`; `section` is the binding's, for what a checkpoint does not say.
    """
    read = getattr(resolve(dotted), "config_values", None)
    return {} if read is None else dict(read(find_checkpoint(link), section))


class Externs:
    """The externs of a model in this process.

    A name bound to `module.function` is that function. A name bound to `module.Class.method` is a method of one shared instance,
    made on first use by `Class.load(checkpoints, config)`; `checkpoints` maps names to found `Checkpoint`s, lazily.
    """

    def __init__(self, linked: Linked) -> None:
        self._linked = linked
        self._hosts: dict[type, Any] = {}
        self._checkpoints = LazyCheckpoints(linked)
        self._config = {node.name: node.config for node in linked.nodes}
        self._found: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """The callable bound to an extern of the spec. What it gives is checked against the declared results: ComponentError."""
        if name not in self._found:
            with bound_by(f"externs.{name}"):
                self._found[name] = self._checked(name, self.bind(self._linked.externs[name]))
        return self._found[name]

    def _checked(self, name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        ports = self._linked.extern_results.get(name)
        if ports is None:
            return called
        check = ResultCheck.of_extern(name, self._linked.externs[name], ports)

        @wraps(called)
        def call(*args: Any) -> Any:
            found = called(*args)
            check.outcome(found)
            return found

        return call

    def warm(self, names: Iterable[str]) -> None:
        """Load what these externs need before the first request: a host class may have `warm(names)` for its methods."""
        methods: dict[Any, set[str]] = {}
        for name in names:
            host = getattr(self.bind(self._linked.externs[name]), "__self__", None)
            if hasattr(host, "warm"):
                methods.setdefault(host, set()).add(self._linked.externs[name].rpartition(".")[2])
        for host, wanted in methods.items():
            try:
                host.warm(wanted)
            except RuntimeFault:
                raise
            except Exception as error:  # a host class can raise anything
                what = f"`{type(host).__qualname__}` cannot load what it needs"
                raise LoadError(f"{what}: {describe(error)}") from error

    def bind(self, dotted: str) -> Callable[..., Any]:
        """The callable a dotted name stands for."""
        owner = resolve(dotted.rpartition(".")[0])
        if not isinstance(owner, type):
            found: Callable[..., Any] = resolve(dotted)
            return found
        if owner not in self._hosts:
            self._hosts[owner] = self._load(owner)
        method = dotted.rpartition(".")[2]
        if not hasattr(self._hosts[owner], method):
            near = meant(method, names_in(owner))
            raise LoadError(f"`{dotted}`: `{dotted.rpartition('.')[0]}` has no `{method}`{near}")
        bound: Callable[..., Any] = getattr(self._hosts[owner], method)
        return bound

    def _load(self, owner: type) -> Any:
        try:
            return owner.load(self._checkpoints, self._config)  # type: ignore[attr-defined]
        except RuntimeFault:
            raise
        except Exception as error:  # a host class can raise anything
            raise LoadError(f"`{owner.__qualname__}` cannot be loaded: {describe(error)}") from error


class LazyCheckpoints(Mapping[str, Checkpoint]):
    """Checkpoints by name, found and verified on first use."""

    def __init__(self, linked: Linked) -> None:
        self._links = {link.name: link for link in linked.checkpoints}
        self._found: dict[str, Checkpoint] = {}

    def __getitem__(self, name: str) -> Checkpoint:
        if name not in self._found:
            self._found[name] = find_checkpoint(self._links[name])
        return self._found[name]

    def __iter__(self) -> Any:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)
