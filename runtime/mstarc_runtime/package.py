"""Loads the two modules of a generated package from its folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.abi.messages import ABI
from mstarc_runtime.errors import LoadError, describe
from mstarc_runtime.program import ConductorProgram, WorkerProgram

Base = TypeVar("Base")


def load_worker(linked: Linked) -> WorkerProgram:
    """An instance of the generated worker program."""
    return _instance(_module(linked, "worker"), WorkerProgram)


def load_conductor(linked: Linked) -> ConductorProgram:
    """An instance of the generated conductor program."""
    return _instance(_module(linked, "conductor"), ConductorProgram)


def _module(linked: Linked, part: str) -> ModuleType:
    if linked.abi != ABI:
        raise LoadError(
            f"{linked.package} was compiled for ABI {linked.abi}, this runtime speaks {ABI}: compile the spec again"
        )
    path = Path(linked.package) / f"{part}.py"
    if not path.is_file():
        raise LoadError(f"{path} does not exist: compile the spec with `mstarc compile`")
    name = f"_mstarc_generated_{linked.model}_{part}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a file that was edited can raise anything
        what = f"SyntaxError: {error}" if isinstance(error, SyntaxError) else describe(error)
        raise LoadError(f"{path} cannot be run: {what}; compile the spec with `mstarc compile`") from error
    return module


def _instance(module: ModuleType, base: type[Base]) -> Base:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, base) and value is not base:
            return value()
    raise LoadError(f"{module.__file__} holds no {base.__name__}")
