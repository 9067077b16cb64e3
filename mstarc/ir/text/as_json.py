"""The JSON form of the IR: every dataclass becomes an object with its class name under `class`, without spans. For tools only."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from mstarc.ir.core import Program


def to_json(program: Program) -> str:
    """The program as indented JSON. Field order is the order of declaration, so equal programs give equal text."""
    return json.dumps(_plain(program), indent=1, ensure_ascii=False) + "\n"


def _plain(item: Any) -> Any:
    if is_dataclass(item):
        named = {field.name: _plain(getattr(item, field.name)) for field in fields(item) if field.name != "span"}
        # `Sampler`, `Node` and others have a field of their own called `kind`; the class name has a key that no field uses.
        return {"class": type(item).__name__, **named}
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return item
