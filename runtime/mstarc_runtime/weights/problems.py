"""What is wrong with the tensors that rules make, as a component wants them: missing, unused, misshaped, and rules that cannot be followed.

Takes mapped tensors and the shapes of parameters; gives texts that say tensor, shape, file, rule and what is near in name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TypeAlias

from mstarc_runtime.weights.files import Shape, Weight
from mstarc_runtime.weights.names import alike, fits
from mstarc_runtime.weights.rules import Kind, Misfit, Rule, Weights

Kinds: TypeAlias = dict[str, list[str]]

_SHOWN = 4  # files or tensors that a text lists
_TOLD = 20  # problems of one sort at one rule that are told each for itself
_LOOKED = 2000  # kinds of names in which near ones are looked for: a model has some hundred, a file may hold any


@dataclass(frozen=True, slots=True)
class Problem:
    """name: a parameter; of `unused`, a stored tensor. text: says it all. rule: the number of the rule that it is about, 0 for none.

    near: what is near in name to the one that is not there. Those of all layers are one problem.
    """

    kind: Kind
    name: str
    text: str
    rule: int = 0
    near: str = ""


def problems_of(weights: Weights, shapes: Mapping[str, Shape], parts: Mapping[str, tuple[int, ...]]) -> list[Problem]:
    """All of them. parts: by pattern of parameters, the rows that each part of a stack has.

    Where a prefix is not there, no name is what the rules after it expect: that alone is told. A tensor that is missing and one that is
    unused and near to it in name are one problem.
    """
    judge = _Judge(weights, shapes, parts)
    misfits = list(judge.misfits())
    prefixes = [found for found in misfits if found.prefix]
    if prefixes:
        return _told(prefixes)
    problems = _told((*misfits, *judge.missing(), *judge.misshaped()))
    meant = {alike(each.near) for each in problems if each.kind in ("missing", "rule")}
    return problems + _told(found for found in judge.unused() if alike(found.name) not in meant)


def _told(found: Iterable[_Found]) -> list[Problem]:
    """Those of all layers as one, and of many sorts at one rule the first few and how many more there are."""
    rules: dict[tuple[Kind, int], dict[str, list[_Found]]] = {}
    for each in found:
        rules.setdefault((each.kind, each.rule), {}).setdefault(alike(each.name), []).append(each)
    problems = []
    for groups in map(list, map(dict.values, rules.values())):
        problems += [_problem(members, "like it") for members in groups[:_TOLD]]
        rest = [each for members in groups[_TOLD:] for each in members]
        problems += [_problem(rest, "of other names")] if rest else []
    return problems


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class _Found:
    """A problem whose texts are made when it is told. prefix: a prefix that is not there."""

    kind: Kind
    name: str
    rule: int
    text: Callable[[], str]
    near: Callable[[], str] = _nothing
    prefix: bool = False


def _problem(members: list[_Found], others: str) -> Problem:
    first = members[0]
    near = first.near()
    hint = f"; near it: `{near}`" if near else ""
    more = f" (and {len(members) - 1} {others})" if len(members) > 1 else ""
    return Problem(first.kind, first.name, first.text() + hint + more, first.rule, near)


@dataclass(frozen=True)
class _Judge:
    weights: Weights
    shapes: Mapping[str, Shape]
    parts: Mapping[str, tuple[int, ...]]

    # --------------------------------------------------------------------------------------------------------------- rules

    def misfits(self) -> Iterator[_Found]:
        """What rules could not do."""
        for misfit in self.weights.misfits:
            rule = misfit.rule
            if misfit.lacks or not misfit.name:  # a tensor is not there
                _, sources = self.weights.source_of(misfit.lacks or rule.takes[0], rule)
                text, near = partial(self._lacking, misfit, sources), partial(self._near_stored, sources)
                yield _Found(misfit.kind, misfit.name, rule.number, text, near, rule.verb == "strip")
            else:
                text = partial("{}: {} (of {})".format, rule, misfit.text, self._files)
                yield _Found(misfit.kind, misfit.name, rule.number, text)

    def _lacking(self, misfit: Misfit, sources: list[str]) -> str:
        source = self._absent(sources)[0]
        if misfit.lacks:
            return f"`{source}` is missing: {misfit.rule} makes `{misfit.name}` of it{self._not_there(sources)}"
        return f"{misfit.rule} {misfit.text}: `{source}` is not in {self._files}"

    # ------------------------------------------------------------------------------------------------------------- missing

    def missing(self) -> Iterator[_Found]:
        """Parameters without a tensor, but for those of a rule that fits nothing: that is told already."""
        told = {misfit.rule.number for misfit in self.weights.misfits if not misfit.name}
        for name in self.shapes:
            if name not in self.weights.tensors:
                maker, sources = self.weights.source_of(name)
                if maker is None or maker.number not in told:
                    text, near = partial(self._missing, name, maker, sources), partial(self._near_stored, sources)
                    yield _Found("missing", name, maker.number if maker else 0, text, near)

    def _missing(self, name: str, maker: Rule | None, sources: list[str]) -> str:
        shown = f"`{name}` {list(self.shapes[name])} is missing: "
        if maker is None and sources == [name] and name not in self.weights.stored:
            return shown + f"{self._files} does not have it, and no rule makes it"
        lacking = " and ".join(f"`{each}`" for each in self._absent(sources))
        return (
            shown + (f"{maker} makes it of {lacking}" if maker else f"it would be {lacking}") + self._not_there(sources)
        )

    def _absent(self, sources: list[str]) -> list[str]:
        """Those that are not stored, or all."""
        return [each for each in sources if each not in self.weights.stored] or sources

    def _not_there(self, sources: list[str]) -> str:
        there = all(each in self.weights.stored for each in sources)
        return f", which {self._files} {'has, and another rule takes away' if there else 'does not have'}"

    def _near_stored(self, sources: list[str]) -> str:
        """The stored tensor that is near in name to the first that is not there: of those that nothing uses if one is."""
        absent = next((each for each in sources if each not in self.weights.stored), None)
        if absent is None:
            return ""
        return _nearest(absent, self._kinds_left) or _nearest(absent, self._kinds_stored)

    @cached_property
    def _kinds_left(self) -> Kinds:
        return _kinds(part.name for _, each in self._left for part in each.parts)

    @cached_property
    def _kinds_stored(self) -> Kinds:
        return _kinds(self.weights.stored)

    # -------------------------------------------------------------------------------------------------------------- unused

    def unused(self) -> Iterator[_Found]:
        """Tensors that are no parameter, and that no rule drops."""
        for name, found in self._left:
            for part in found.parts:
                text = partial("{} of {} is not used: there is no parameter `{}`".format, part, part.file, name)
                yield _Found("unused", part.name, found.rule, text, partial(self._near_wanted, name))

    @cached_property
    def _left(self) -> list[tuple[str, Weight]]:
        return [(name, each) for name, each in self.weights.tensors.items() if name not in self.shapes]

    def _near_wanted(self, name: str) -> str:
        """The parameter that is near in name: of those that are missing if one is."""
        return _nearest(name, self._kinds_missing) or _nearest(name, self._kinds_wanted)

    @cached_property
    def _kinds_missing(self) -> Kinds:
        return _kinds(each for each in self.shapes if each not in self.weights.tensors)

    @cached_property
    def _kinds_wanted(self) -> Kinds:
        return _kinds(self.shapes)

    # ----------------------------------------------------------------------------------------------------------- misshaped

    def misshaped(self) -> Iterator[_Found]:
        """Tensors of another shape, of integers, and stacks of parts with other rows than the component takes them to have."""
        for name, shape in self.shapes.items():
            found = self.weights.tensors.get(name)
            if found is None or found.shape is None:
                continue
            if found.shape != shape:
                yield self._other(name, found, f"`{name}` is {list(found.shape)}, not {list(shape)}")
            for part in found.parts:
                if not part.dtype.startswith(("float", "bfloat")):
                    text = f"`{name}` is a floating-point tensor, and `{part.name}` is {part.dtype}"
                    yield self._other(name, found, text)
        for pattern, rows in self.parts.items():
            for name in fits(self.shapes, pattern):
                yield from self._rows(name, self.weights.tensors.get(name), rows)

    def _rows(self, name: str, found: Weight | None, rows: tuple[int, ...]) -> Iterator[_Found]:
        """Parts that are right as a sum, but not each."""
        if found is None or found.shape != self.shapes[name] or len(found.parts) != len(rows):
            return
        wrong = [(part, due) for part, due in zip(found.parts, rows, strict=True) if part.shape[0] != due]
        for part, due in wrong[:1]:
            yield self._other(name, found, f"`{name}` has {due} rows of `{part.name}`, which has {part.shape[0]}")

    def _other(self, name: str, found: Weight, text: str) -> _Found:
        return _Found("misshaped", name, found.rule, partial(self._made_of, found, text))

    def _made_of(self, found: Weight, text: str) -> str:
        """A text with what a tensor was made of, and by which rule."""
        files = _listed(sorted({part.file for part in found.parts}))
        parts = _listed([str(part) for part in found.parts])
        rule = self.weights.rules[found.rule - 1] if found.rule else None
        return f"{text}: {f'{rule} makes it of' if rule and rule.verb != 'strip' else 'it is'} {parts} of {files}"

    @cached_property
    def _files(self) -> str:
        names = {part.file for each in self.weights.stored.values() for part in each.parts}
        return _listed(sorted(names)) or "an empty file"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _kinds(names: Iterable[str]) -> Kinds:
    """Names by what is alike in them: those that differ in numbers alone are looked at once."""
    kinds: Kinds = {}
    for each in names:
        kinds.setdefault(alike(each), []).append(each)
    return kinds


def _nearest(name: str, known: Kinds) -> str:
    """The nearest of the known names; "" if none is near, or there are too many to look through."""
    close = get_close_matches(alike(name), list(known), n=1) if len(known) <= _LOOKED else []
    if not close:
        return ""
    members = known[close[0]]
    near = get_close_matches(name, members, n=1, cutoff=0.0) if len(members) <= _LOOKED else []
    return (near or members)[0]
