"""A folder of reference data: `cases.json`, `cases.safetensors`, a checkpoint in its original layout. Nothing in it has a fixed size.

Most models list their cases as `{"name", "params", "inputs", "outputs", "expect"}` with inputs and outputs naming tensors; the
speech models name tensors by prefix. Every tensor that is asked for is remembered: what is left over was not verified.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint


class UnusableFolder(Exception):
    """The folder holds no reference data that this can read; the text says what is wrong."""


def existing(folder: Path) -> Path:
    """The folder. Raises UnusableFolder if it is none."""
    if not folder.is_dir():
        raise UnusableFolder(f"`{folder}` {'is a file' if folder.exists() else 'does not exist'}")
    return folder


class Golden:
    """Tensors by name, and the document of cases."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Raises UnusableFolder."""
        self.folder = existing(folder)
        self.device = device
        self.document: dict[str, Any] = _document(folder / "cases.json")
        self._tensors = _tensors(folder / "cases.safetensors")
        self._asked: set[str] = set()

    @property
    def checkpoint(self) -> Checkpoint:
        """The folder as a checkpoint."""
        return Checkpoint(path=self.folder)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def given(self, name: str) -> Tensor:
        """An input, on the device. Raises UnusableFolder if there is none of that name."""
        return self.wanted(name).to(self.device)

    def wanted(self, name: str) -> Tensor:
        """An output, on the CPU. Raises UnusableFolder if there is none of that name."""
        self._asked.add(name)
        try:
            return self._tensors[name]
        except KeyError:
            raise UnusableFolder(f"cases.safetensors has no tensor `{name}`") from None

    def matching(self, pattern: str) -> list[str]:
        """The first group of every tensor's name that the pattern matches, each once and in order."""
        found = (re.fullmatch(pattern, name) for name in sorted(self._tensors))
        return list(dict.fromkeys(match[1] for match in found if match is not None))

    def left_over(self) -> list[str]:
        """Tensors that nobody asked for."""
        return sorted(self._tensors.keys() - self._asked)

    def listed(self) -> list[Case]:
        """The cases of the document, as most models list them. Raises UnusableFolder."""
        cases = self.document.get("cases")
        if not isinstance(cases, list) or not all(isinstance(case, dict) and "name" in case for case in cases):
            raise UnusableFolder("cases.json has no list `cases` of objects with a `name`")
        return [
            Case(
                self,
                str(case["name"]),
                case.get("params") or {},
                case.get("expect") or {},
                case.get("inputs") or {},
                case.get("outputs") or {},
            )
            for case in cases
        ]


@dataclass(frozen=True, slots=True)
class Case:
    """One listed case. `inputs` and `outputs`: names of tensors by their role."""

    golden: Golden
    name: str
    params: Mapping[str, Any]
    expect: Mapping[str, Any]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def given(self, role: str) -> Tensor:
        """An input, on the device. Raises UnusableFolder."""
        if role not in self.inputs:
            raise UnusableFolder(f"case `{self.name}` has no input `{role}`")
        return self.golden.given(self.inputs[role])

    def wanted(self, role: str) -> Tensor:
        """An output, on the CPU. Raises UnusableFolder."""
        if role not in self.outputs:
            raise UnusableFolder(f"case `{self.name}` has no output `{role}`")
        return self.golden.wanted(self.outputs[role])


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableFolder(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UnusableFolder(f"{path} is not an object")
    return found


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UnusableFolder(f"{path} cannot be read: {error}") from None
