"""Mapped tensors against what a component wants: a `Fit` says what is missing, unused or misshaped, and reads what fits.

Nothing is read to find problems, so a checkpoint can be judged by its headers alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mstarc_runtime.errors import LoadError
from mstarc_runtime.weights.files import Shape
from mstarc_runtime.weights.problems import Problem, problems_of
from mstarc_runtime.weights.rules import Weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module

    Dtype: TypeAlias = torch.dtype | Callable[[str], torch.dtype] | None


@dataclass(frozen=True, slots=True)
class Fit:
    """What a component wants, and the tensors that are there for it. parts: by pattern of parameters, the rows of each part of a stack."""

    what: str
    weights: Weights
    shapes: Mapping[str, Shape]
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def problems(self) -> list[Problem]:
        """All that is wrong, without reading any tensor."""
        return problems_of(self.weights, self.shapes, self.parts)

    def tensors(self, device: str = "cpu", dtype: Dtype = None) -> dict[str, Tensor]:
        """All that `each` gives, by name."""
        return dict(self.each(device, dtype))

    def each(self, device: str = "cpu", dtype: Dtype = None) -> Iterator[tuple[str, Tensor]]:
        """The parameters on a device one after the other, without a copy where none is needed; two names of one tensor share it.

        dtype: one for all, or by name. Raises LoadError for a problem, before anything is read.
        """
        problems = self.problems()
        if problems:
            more = f" (and {len(problems) - 1} more of other kinds)" if len(problems) > 1 else ""
            raise LoadError(f"{self.what}: {problems[0].text}{more}")
        named = Counter(self.weights.tensors[name].read for name in self.shapes)
        made: dict[tuple[Callable[[], Tensor], torch.dtype | None], Tensor] = {}
        for name in self.shapes:
            read, kind = self.weights.tensors[name].read, dtype(name) if callable(dtype) else dtype
            tensor = made[read, kind] if (read, kind) in made else read().to(device, kind)
            if named[read] > 1:
                made[read, kind] = tensor
            yield name, tensor


def fit_of(module: Module, weights: Weights, what: str, parts: Mapping[str, tuple[int, ...]] | None = None) -> Fit:
    """The tensors against a module's parameters and buffers; it may be on the meta device."""
    return Fit(what, weights, {name: tuple(each.shape) for name, each in module.state_dict().items()}, parts or {})


def fill(module: Module, fit: Fit, device: str = "cpu", dtype: Dtype = None) -> None:
    """Make the tensors the module's parameters and buffers, ready to run. Raises LoadError for a problem."""
    module.load_state_dict(fit.tensors(device, dtype), assign=True)
    module.requires_grad_(False)
    module.eval()


def dtype_named(name: object, what: str) -> torch.dtype:
    """The dtype that a node's config asks for. Raises LoadError for another than those that nets have."""
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if not isinstance(name, str) or name not in known:
        raise LoadError(f"{what}: dtype `{name}` is none of {', '.join(known)}")
    return known[name]
