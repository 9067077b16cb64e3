"""The files of a generated package. Takes a program and its plan; gives name -> text. Reads no file but the templates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from mstarc.codegen.conductor_view import conductor_file
from mstarc.codegen.source import class_name
from mstarc.codegen.worker_view import worker_file
from mstarc.ir.core import Program


@dataclass(frozen=True, slots=True)
class PackageFile:
    """What the template of __init__.py prints."""

    model: str
    name: str
    spec: str


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("mstarc.codegen"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(program: Program, spec: str) -> dict[str, str]:
    """The Python files; `spec` is the name of the file that they are made from. Raises NotBuilt."""
    views = {
        "__init__.py": PackageFile(program.model, class_name(program.model), spec),
        "conductor.py": conductor_file(program),
        "worker.py": worker_file(program),
    }
    templates = {"__init__.py": "package.py.j2", "conductor.py": "conductor.py.j2", "worker.py": "worker.py.j2"}
    return {name: _environment().get_template(templates[name]).render(file=view) for name, view in views.items()}
