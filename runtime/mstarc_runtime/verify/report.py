"""What came out of a verification: one line per comparison, and whether each is within its tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: what bf16 weights, activations and caches (eight bits of mantissa) may cost by model; random weights of tiny width amplify it,
#: most where a result is fed back
LOOSE = {"orpheus": 5e-2, "pi05": 0.12, "vjepa2": 5e-2, "vjepa2_ac": 0.12}


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. `error` is the largest difference, relative to the largest reference value unless `scale` says otherwise."""

    case: str
    what: str
    error: float
    tolerance: float
    scale: str = "relative"  # relative | absolute | equal (error = how many values differ)
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # nan is not


@dataclass(slots=True)
class Report:
    """The comparisons of one folder. `loose`: 0 if all is computed in f32, else what every tolerance is at least."""

    model: str
    loose: float = 0.0
    checks: list[Check] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether all is computed in f32."""
        return not self.loose

    @property
    def dtype(self) -> str:
        """Of weights and caches, where a component has a choice."""
        return "float32" if self.exact else "bfloat16"

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def close(
        self,
        case: str,
        what: str,
        got: Any,
        wanted: Any,
        tolerance: float,
        *,
        absolute: bool = False,
        always_f32: bool = False,
    ) -> None:
        """Floats within `tolerance` of the largest reference value, or absolutely. `always_f32`: whatever the precision of the rest."""
        got, wanted = _double(got), _double(wanted)
        scale = "absolute" if absolute else "relative"
        tolerance = tolerance if always_f32 else max(tolerance, self.loose)
        if got.shape != wanted.shape:
            note = f"shape {list(got.shape)}, expected {list(wanted.shape)}"
            self.checks.append(Check(case, what, math.inf, tolerance, scale, note))
            return
        difference = float((got - wanted).abs().max()) if wanted.numel() else 0.0
        largest = float(wanted.abs().max()) if wanted.numel() else 0.0
        error = difference if absolute or difference == 0 else difference / largest if largest else math.inf
        self.checks.append(Check(case, what, error, tolerance, scale))

    def equal(self, case: str, what: str, got: Any, wanted: Any) -> None:
        """Values that must be the same: ids, masks, texts."""
        if isinstance(got, Tensor | np.ndarray):
            got = got.tolist()
        if isinstance(wanted, Tensor | np.ndarray):
            wanted = wanted.tolist()
        if got == wanted:
            self.checks.append(Check(case, what, 0.0, 0.0, "equal"))
            return
        several = isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted)
        differ = sum(mine != theirs for mine, theirs in zip(got, wanted, strict=True)) if several else 1
        self.checks.append(Check(case, what, float(differ), 0.0, "equal", f"{_short(got)}, expected {_short(wanted)}"))

    def ids(self, case: str, what: str, drawn: Sequence[int], scores: Tensor, wanted: Sequence[int]) -> None:
        """Greedy ids. In less than f32 an id may be another one whose score [n, vocab] is as near as the precision allows."""
        if self.exact:
            self.equal(case, what, list(drawn), list(wanted))
            return
        widths = 2 * self.loose * scores.masked_fill(~scores.isfinite(), 0).abs().amax(dim=1)
        pairs = zip(drawn, wanted, scores, widths.tolist(), strict=True)
        near = [mine if float(row[mine] - row[theirs]) > width else theirs for mine, theirs, row, width in pairs]
        self.equal(case, f"{what} (near ties aside)", near, list(wanted))

    def broken(self, case: str, note: str, what: str = "") -> None:
        """Something that could not be compared at all."""
        self.checks.append(Check(case, what, math.inf, 0.0, "equal", note))

    def lines(self) -> Iterable[str]:
        """The table, for people."""
        wide = max((len(check.case) for check in self.checks), default=0)
        what = max((len(check.what) for check in self.checks), default=0)
        for check in self.checks:
            size = (
                f"{check.error:g} differ" if check.scale == "equal" else f"{check.error:.1e} of {check.tolerance:.0e}"
            )
            mark = "ok  " if check.passed else "FAIL"
            scale = " absolute" if check.scale == "absolute" else ""
            note = f"   {check.note}" if check.note else ""
            yield f"{mark} {check.case:<{wide}}  {check.what:<{what}}  {size}{scale}{note}"

    def document(self) -> dict[str, Any]:
        """The report, for programs. An error that is no number is null."""
        rows = [{**asdict(check), "passed": check.passed} for check in self.checks]
        for row in rows:
            row["error"] = row["error"] if math.isfinite(row["error"]) else None
        return {"model": self.model, "dtype": self.dtype, "passed": self.passed, "checks": rows}


def _double(values: Any) -> Tensor:
    found = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    return found.detach().to("cpu", torch.float64)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
