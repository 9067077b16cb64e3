"""Reference cases of V-JEPA 2 (tests/goldens/vjepa2, vjepa2_ac): their tensors by case and name, and the tolerance rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

GOLDENS = Path(__file__).parents[1] / "goldens"


class Cases:
    """The cases of one folder. `tensor(case, name)` is an input or an output of a case; inputs may be shared between cases."""

    def __init__(self, folder: str) -> None:
        self.folder = GOLDENS / folder
        self._tensors = load_file(self.folder / "cases.safetensors")
        listed = json.loads((self.folder / "cases.json").read_text())["cases"]
        self.cases: dict[str, dict[str, Any]] = {case["name"]: case for case in listed}

    def tensor(self, case: str, name: str) -> Tensor:
        found = self.cases[case]
        return self._tensors[(found["inputs"] | found["outputs"])[name]]

    def has(self, case: str, name: str) -> bool:
        return name in self.cases[case]["inputs"] | self.cases[case]["outputs"]

    def named(self, start: str) -> list[str]:
        """Names of the cases that begin so."""
        return [name for name in self.cases if name.startswith(start)]


def close(got: Tensor, wanted: Tensor, relative: float = 1e-4) -> None:
    """Equal within `relative` of the largest value."""
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    assert (got - wanted).abs().max() <= relative * wanted.abs().max()
