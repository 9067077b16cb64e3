"""Mapped tensors against what a component wants: a `Fit` says what is missing, unused or misshaped, and reads what fits.

Nothing is read to find problems, so a checkpoint can be judged by its headers alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from mstarc_runtime.errors import LoadError
from mstarc_runtime.weights.names import alike, fits
from mstarc_runtime.weights.rules import Kind, Misfit, Rule, Weights
from mstarc_runtime.weights.stored import Shape, Stored, Weight

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module

    Dtype: TypeAlias = torch.dtype | Callable[[str], torch.dtype] | None

_SHOWN = 4  # files or tensors that a text lists


@dataclass(frozen=True, slots=True)
class Problem:
    """name: a parameter; of `unused`, a stored tensor. text: says it all. rule: the number of the rule that it is about, 0 for none.

    Those of all layers are one problem.
    """

    kind: Kind
    name: str
    text: str
    rule: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """What a component wants, and the tensors that are there for it. parts: by pattern of parameters, the rows of each part of a stack."""

    what: str
    weights: Weights
    shapes: Mapping[str, Shape]
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def problems(self) -> list[Problem]:
        """All of them: rules that cannot do what they say, then tensors that are missing, misshaped or unused.

        Where a prefix is not there, no name is what the rules after it expect: that alone is told.
        """
        prefixes = [found for found in self._misfits() if found.verb == "strip"]
        groups: dict[tuple[Kind, str, int], list[_Found]] = {}
        for found in prefixes or (*self._misfits(), *self._missing(), *self._misshaped(), *self._unused()):
            groups.setdefault((found.kind, alike(found.name), found.rule), []).append(found)
        return [_problem(members) for members in groups.values()]

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

    # ------------------------------------------------------------------------------------------------------------ problems

    def _misfits(self) -> Iterator[_Found]:
        for misfit in self.weights.misfits:
            yield _Found(
                misfit.kind, misfit.name, misfit.rule.number, partial(self._of_misfit, misfit), misfit.rule.verb
            )

    def _of_misfit(self, misfit: Misfit) -> str:
        if misfit.lacks:
            _, sources = self.weights.source_of(misfit.lacks, misfit.rule)
            lacking = self._absent(sources)
            return f"{lacking[0]} is missing: {misfit.rule} makes `{misfit.name}` of it{self._no_file(sources)}"
        if misfit.name:
            return f"{misfit.rule}: {misfit.text} (of {self._files()})"
        _, sources = self.weights.source_of(misfit.rule.takes[0], misfit.rule)
        return f"{misfit.rule} {misfit.text}: {self._absent(sources)[0]} is not in {self._files()}{self._near_left(sources[0])}"

    def _missing(self) -> Iterator[_Found]:
        told = {misfit.rule.number for misfit in self.weights.misfits if not misfit.name}
        for name in self.shapes:
            if name not in self.weights.tensors:
                maker, sources = self.weights.source_of(name)
                if maker is None or maker.number not in told:
                    yield _Found("missing", name, _number(maker), partial(self._of_missing, name, maker, sources))

    def _of_missing(self, name: str, maker: Rule | None, sources: list[str]) -> str:
        shown = f"`{name}` {list(self.shapes[name])} is missing: "
        if maker is None and sources == [name] and name not in self.weights.stored:
            return shown + f"{self._files()} does not have it, and no rule makes it{self._near_left(name)}"
        lacking = " and ".join(self._absent(sources))
        shown += f"{maker} makes it of {lacking}" if maker else f"it is to be {lacking}"
        return shown + self._no_file(sources)

    def _no_file(self, sources: list[str]) -> str:
        absent = [each for each in sources if each not in self.weights.stored]
        if not absent:
            return f", which {self._files()} has, and another rule takes away"
        return f", which {self._files()} does not have{self._near_left(absent[0])}"

    def _absent(self, sources: list[str]) -> list[str]:
        """Those that are not stored, or all, in backquotes."""
        return [f"`{each}`" for each in sources if each not in self.weights.stored] or [f"`{each}`" for each in sources]

    def _near_left(self, name: str) -> str:
        """The stored tensor that is near in name: of those that nothing uses if one is."""
        left = [part.name for name, each in self._left() for part in each.parts]
        return _near(name, left) or _near(name, self.weights.stored)

    def _misshaped(self) -> Iterator[_Found]:
        for name, shape in self.shapes.items():
            found = self.weights.tensors.get(name)
            if found is None or found.shape is None:
                continue
            if found.shape != shape:
                text = f"`{name}` is {list(found.shape)}, not {list(shape)}"
                yield _Found("misshaped", name, found.rule, partial(self._of, found, text))
            for part in found.parts:
                if not part.dtype.startswith(("float", "bfloat")):
                    text = f"`{name}` is a floating-point tensor, and `{part.name}` is {part.dtype}"
                    yield _Found("misshaped", name, found.rule, partial(self._of, found, text))
        for pattern, rows in self.parts.items():
            for name in fits(self.shapes, pattern):
                yield from self._rows(name, self.weights.tensors.get(name), rows)

    def _rows(self, name: str, found: Weight | None, rows: tuple[int, ...]) -> Iterator[_Found]:
        """Parts that fit together as a sum, but not each."""
        if found is None or found.shape != self.shapes[name] or len(found.parts) != len(rows):
            return
        for part, due in zip(found.parts, rows, strict=True):
            if part.shape[0] != due:
                text = f"`{name}` has {due} rows of `{part.name}`, which has {part.shape[0]}"
                yield _Found("misshaped", name, found.rule, partial(self._of, found, text))
                return

    def _of(self, found: Weight, text: str) -> str:
        """A text with what a tensor was made of, and by which rule."""
        files = _listed(sorted({part.file for part in found.parts}))
        parts = _listed([str(part) for part in found.parts])
        rule = self.weights.rules[found.rule - 1] if found.rule else None
        return f"{text}: {f'{rule} makes it of' if rule and rule.verb != 'strip' else 'it is'} {parts} of {files}"

    def _unused(self) -> Iterator[_Found]:
        for name, found in self._left():
            for part in found.parts:
                yield _Found("unused", part.name, found.rule, partial(self._of_unused, name, part))

    def _left(self) -> list[tuple[str, Weight]]:
        """The tensors that are no parameter."""
        return [(name, each) for name, each in self.weights.tensors.items() if name not in self.shapes]

    def _of_unused(self, name: str, part: Stored) -> str:
        wanted = [each for each in self.shapes if each not in self.weights.tensors]
        near = _near(name, wanted) or _near(name, self.shapes)
        return f"{part} of {part.file} is not used: there is no parameter `{name}`{near}"

    def _files(self) -> str:
        return (
            _listed(sorted({part.file for each in self.weights.stored.values() for part in each.parts}))
            or "an empty file"
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """A problem whose text is made when it is told."""

    kind: Kind
    name: str
    rule: int
    text: Callable[[], str]
    verb: str = ""  # of a rule that cannot do what it says


def _problem(members: list[_Found]) -> Problem:
    first = members[0]
    more = f" (and {len(members) - 1} like it)" if len(members) > 1 else ""
    return Problem(first.kind, first.name, first.text() + more, first.rule)


def _number(rule: Rule | None) -> int:
    return rule.number if rule else 0


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _near(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, as an end of a text; "" if none is near. Names that differ in numbers alone are looked at once."""
    kinds: dict[str, list[str]] = {}
    for each in known:
        kinds.setdefault(alike(each), []).append(each)
    close = get_close_matches(alike(name), list(kinds), n=1)
    if not close:
        return ""
    members = kinds[close[0]]
    return f"; near it: `{(get_close_matches(name, members, n=1, cutoff=0.0) or members)[0]}`"


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
