"""The rules of a binding's `weights`: from the tensors of a checkpoint to the names of parameters. No tensor is read for it.

Rules act one after the other on all tensors. In a name, `*` stands for one part between dots and `**` for any number of them; what they
stand for in the pattern is put in their places in the new name, in order. `#` is a number; in a new name `#-2` is the number less 2.

strip: PREFIX                     names under the prefix lose it, others stay
drop: NAME or [NAME, …]           not used; nothing has to be there
rename: NAME, to: NAME            a `to` without any sign is one name, for a pattern that one tensor fits
stack: [NAME, …], to: NAME        end to end along `dim` (0 if left out); a name with `#` is those of all numbers, and neighbours take turns
split: NAME, to: [NAME, …]        equal parts along `dim`
experts: NAME, to: NAME           one tensor with the numbers on a new dim 0
tie: NAME, to: NAME               one tensor under both names, whichever is stored; if both are, they must be equal
transform: NAME, by: HOW          see `transforms`; `transform: [NAME, …], to: NAME` makes one of several

A rule that fits no tensor is a misfit unless it says `optional: true`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mstarc_runtime.errors import LoadError
from mstarc_runtime.weights.files import Shape, Weight
from mstarc_runtime.weights.names import Holes, fits, named, numbered, pattern, without_number
from mstarc_runtime.weights.transforms import TRANSFORMS, Misshaped

if TYPE_CHECKING:
    from torch import Tensor

Tensors: TypeAlias = dict[str, Weight]
#: what can be wrong; `rule` is of a rule as a whole
Kind: TypeAlias = Literal["rule", "missing", "misshaped", "unused"]
VERBS = ("strip", "drop", "rename", "stack", "split", "experts", "tie", "transform")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; numbers count from 1."""

    number: int
    verb: str
    takes: tuple[str, ...]
    to: tuple[str, ...]
    dim: int
    by: str
    optional: bool

    def __str__(self) -> str:
        listed = ", ".join(self.takes)
        return f"rule {self.number} (`{self.verb}: {f'[{listed}]' if len(self.takes) > 1 else listed}`)"


@dataclass(frozen=True, slots=True)
class Misfit:
    """What a rule could not do. lacks: the tensor that it lacks for `name`, called as before the rule; else `text` says what is wrong."""

    kind: Kind
    rule: Rule
    name: str = ""
    lacks: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors by the names that rules gave them. stored: as they lie in the files. fitted: the numbers of rules that fitted some tensor."""

    tensors: Mapping[str, Weight]
    stored: Mapping[str, Weight]
    rules: tuple[Rule, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    fitted: frozenset[int] = frozenset()

    def source_of(self, name: str, before: Rule | None = None) -> tuple[Rule | None, list[str]]:
        """The last rule that would make a tensor of this name, and the stored tensors that it would be made of.

        before: only rules before this one. Where a number is open, a stored name is a pattern.
        """
        maker: Rule | None = None
        names = [name]
        for rule in reversed(self.rules[: before.number - 1 if before else None]):
            takes = {each: self._taken(rule, each) for each in names}
            if maker is None and rule.verb != "strip" and any(takes.values()):
                maker = rule
            names = [one for each in names for one in takes[each] or [each]]
        return maker, names

    def _taken(self, rule: Rule, name: str) -> list[str]:
        """What the rule would take to make `name`; none if it makes no such name."""
        if rule.verb == "strip":
            return [rule.takes[0] + name] if rule.number in self.fitted else []
        for to in rule.to:
            match = pattern(to).fullmatch(name)
            if match is not None:
                return [named(take, match.groups(), to) for take in rule.takes]
        return []


def mapped(stored: Mapping[str, Weight], rules: Sequence[Mapping[str, Any]]) -> Weights:
    """The tensors after all rules. What a rule cannot do is among the misfits; what it was to make then has no shape."""
    found, misfits, fitted = dict(stored), list[Misfit](), set[int]()
    parsed = tuple(_rule(number, rule) for number, rule in enumerate(rules, 1))
    for rule in parsed:
        step = _Step(rule, found)
        _APPLY[rule.verb](step)
        found = step.result()
        misfits += step.misfits
        if step.fitted:
            fitted.add(rule.number)
    return Weights(found, dict(stored), parsed, tuple(misfits), frozenset(fitted))


def _rule(number: int, given: Mapping[str, Any]) -> Rule:
    verb = next(verb for verb in VERBS if verb in given)
    takes, to = ([part] if isinstance(part, str) else part for part in (given[verb], given.get("to", [])))
    by, optional = given.get("by", ""), given.get("optional", False)
    return Rule(number, verb, tuple(takes), tuple(to), given.get("dim", 0), by, optional)


# -------------------------------------------------------------------------------------------------------------------- step


class _Step:
    """One rule, the tensors before it, and what it does with them."""

    def __init__(self, rule: Rule, tensors: Tensors) -> None:
        self.rule = rule
        self.tensors = tensors
        self.misfits: list[Misfit] = []
        self.fitted = False
        self._gone: set[str] = set()
        self._made: list[tuple[str, Weight]] = []

    def fits(self, name: str) -> dict[str, Holes]:
        """The tensors that fit -> what the signs stand for."""
        found = fits(self.tensors, name)
        self.fitted = self.fitted or bool(found)
        return found

    def unfit(self) -> None:
        """Tell if the rule has fitted nothing."""
        if not self.fitted and not self.rule.optional:
            self.misfits.append(Misfit("rule", self.rule, text="fits no tensor"))

    def groups(self) -> Iterator[tuple[Holes, list[str]]]:
        """The tensors that are taken together, in the order of the rule. A group that lacks one is told and not given."""
        takes, to = self.rule.takes, (*self.rule.to, *self.rule.takes)[0]
        parts = [{holes: name for name, holes in self.fits(take).items()} for take in takes]
        for holes in {holes: None for part in parts for holes in part}:
            there = [part.get(holes) for part in parts]
            names = [name for name in there if name is not None]
            if len(names) == len(there):
                yield holes, names
            else:
                lacking = takes[there.index(None)]
                self.lacking(named(to, holes, takes[0]), named(lacking, holes, takes[0]), names)

    def numbers(self) -> Iterator[tuple[Holes, list[str]]]:
        """As `groups`, where a name with `#` is those of all numbers: in their order, and of neighbours by turns."""
        takes, to = self.rule.takes, self.rule.to[0]
        runs = [0]  # by name; neighbours with `#` are one run
        for one, other in pairwise(takes):
            runs.append(runs[-1] + _apart(one, other))
        groups: dict[Holes, dict[tuple[int, int, int], str]] = {}
        for place, take in enumerate(takes):
            for name, holes in self.fits(take).items():
                rest, number = without_number(take, holes)
                groups.setdefault(rest, {})[runs[place], number, place] = name
        for rest, members in groups.items():
            count = 1 + max(number for _, number, _ in members)
            due = ((runs[p], n, p) for p, take in enumerate(takes) for n in range(count if "#" in take else 1))
            lacking = next((key for key in due if key not in members), None)
            if lacking is None:
                yield rest, [members[key] for key in sorted(members)]
            else:
                lacks = named(numbered(takes[lacking[2]], lacking[1]), rest, to)
                self.lacking(named(to, rest, to), lacks, list(members.values()))

    def take(self, names: Sequence[str]) -> list[Weight]:
        """The tensors, which then are no more."""
        self._gone.update(names)
        return [self.tensors[name] for name in names]

    def make(self, name: str, shape: Shape, of: Sequence[Weight], by: Callable[[list[Tensor]], Tensor]) -> None:
        """A tensor that is computed from others when it is read."""
        parts = tuple(part for each in of for part in each.parts)
        self.put(name, Weight(shape, parts, partial(_computed, [each.read for each in of], by)))

    def put(self, name: str, made: Weight) -> None:
        """A tensor under a new name."""
        self._made.append((name, replace(made, rule=self.rule.number)))

    def lacking(self, name: str, lacks: str, names: Sequence[str]) -> None:
        """Tell that `name` cannot be made of these for want of another."""
        self.misfits.append(Misfit("missing", self.rule, name, lacks))
        self.broken(name, names)

    def misshaped(self, name: str, why: str, names: Sequence[str]) -> None:
        """Tell that `name` cannot be made of these."""
        listed = " and ".join(f"`{each}` {list(self.tensors[each].shape or ())}" for each in names)
        self.misfits.append(Misfit("misshaped", self.rule, name, text=f"{listed}: {why}"))
        self.broken(name, names)

    def broken(self, name: str, names: Sequence[str]) -> None:
        """What has been told of these goes on under `name`."""
        self.take(names)
        self.put(name, Weight(None, (), _never))

    def whole(self, name: str, names: Sequence[str]) -> bool:
        """Whether all of these have a shape; if not, `name` has none."""
        if all(self.tensors[each].shape is not None for each in names):
            return True
        self.broken(name, names)
        return False

    def result(self) -> Tensors:
        """The tensors after the rule. Two of one name are told, unless one of them is broken."""
        self.unfit()
        found = {name: each for name, each in self.tensors.items() if name not in self._gone}
        for name, each in self._made:
            one = found.get(name, each)
            if one is not each and one.parts and each.parts:
                first, second = (", ".join(str(part) for part in weight.parts) for weight in (one, each))
                text = f"there are two tensors `{name}`, of {first} and of {second}"
                self.misfits.append(Misfit("rule", self.rule, name, text=text))
            found[name] = each
        return found


def _apart(one: str, other: str) -> bool:
    """Whether one of two names has no `#`."""
    return "#" not in one or "#" not in other


def _computed(reads: Sequence[Callable[[], Tensor]], by: Callable[[list[Tensor]], Tensor]) -> Tensor:
    return by([read() for read in reads])


def _never() -> Tensor:
    raise AssertionError("a tensor without a shape is not read")


# ------------------------------------------------------------------------------------------------------------------- verbs


def _strip(step: _Step) -> None:
    prefix = step.rule.takes[0]
    for name in [name for name in step.tensors if name.startswith(prefix)]:
        step.fitted = True
        step.put(name.removeprefix(prefix), *step.take([name]))


def _drop(step: _Step) -> None:
    for name in step.rule.takes:
        step.take(list(step.fits(name)))
    step.fitted = True


def _rename(step: _Step) -> None:
    for name, holes in step.fits(step.rule.takes[0]).items():
        step.put(named(step.rule.to[0], holes, step.rule.takes[0]), *step.take([name]))


def _stack(step: _Step) -> None:
    takes, to, dim = step.rule.takes, step.rule.to[0], step.rule.dim
    counted = any("#" in take for take in takes)
    for holes, names in step.numbers() if counted else step.groups():
        name = named(to, holes, to if counted else takes[0])
        if not step.whole(name, names):
            continue
        shapes = [step.tensors[each].shape or () for each in names]
        rests = {(*shape[:dim], -1, *shape[dim + 1 :]) for shape in shapes}
        if len(rests) > 1 or dim >= len(shapes[0]):
            step.misshaped(name, f"they cannot be end to end along dim {dim}", names)
            continue
        shape = (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])
        step.make(name, shape, step.take(names), partial(_end_to_end, dim))


def _split(step: _Step) -> None:
    rule, dim, count = step.rule, step.rule.dim, len(step.rule.to)
    for whole, holes in step.fits(rule.takes[0]).items():
        parts = [named(to, holes, rule.takes[0]) for to in rule.to]
        shape = step.tensors[whole].shape
        if shape is None or dim >= len(shape) or shape[dim] % count:
            if shape is not None:
                step.misshaped(parts[0], f"it has no {count} equal parts along dim {dim}", [whole])
            for name in parts:
                step.broken(name, [whole])
            continue
        size = shape[dim] // count
        for place, name in enumerate(parts):
            of = (*shape[:dim], size, *shape[dim + 1 :])
            step.make(name, of, step.take([whole]), partial(_part, dim, place * size, size))


def _experts(step: _Step) -> None:
    to = step.rule.to[0]
    for holes, names in step.numbers():
        name = named(to, holes, to)
        if not step.whole(name, names):
            continue
        shapes = {step.tensors[each].shape or () for each in names}
        if len(shapes) > 1:
            step.misshaped(name, "they differ in shape", names)
        else:
            step.make(name, (len(names), *shapes.pop()), step.take(names), _on_a_new_dim)


def _tie(step: _Step) -> None:
    take, to = step.rule.takes[0], step.rule.to[0]
    pairs = {(name, named(to, holes, take)) for name, holes in step.fits(take).items()}
    pairs |= {(named(take, holes, to), name) for name, holes in step.fits(to).items()}
    for pair in sorted(pairs):
        there = [name for name in pair if name in step.tensors]
        if len({step.tensors[name].shape for name in there}) > 1:
            step.misshaped(pair[0], "they are to be one tensor", there)
            step.broken(pair[1], there)
            continue
        one, *other = step.take(there)
        if other and one.read is not other[0].read:
            one = replace(one, read=partial(_equal, one, other[0]))
        for name in pair:
            step.put(name, one)


def _transform(step: _Step) -> None:
    transform = TRANSFORMS[step.rule.by]
    for holes, names in step.groups():
        name = named(step.rule.to[0], holes, step.rule.takes[0]) if step.rule.to else names[0]
        if not step.whole(name, names):
            continue
        try:
            shape = transform.shape(*(step.tensors[each].shape or () for each in names))
        except Misshaped as reason:
            step.misshaped(name, str(reason), names)
            continue
        step.make(name, shape, step.take(names), lambda parts: transform.tensor(*parts))


_APPLY: dict[str, Callable[[_Step], None]] = {
    "strip": _strip,
    "drop": _drop,
    "rename": _rename,
    "stack": _stack,
    "split": _split,
    "experts": _experts,
    "tie": _tie,
    "transform": _transform,
}


# ----------------------------------------------------------------------------------------------------------------- reading


def _end_to_end(dim: int, parts: list[Tensor]) -> Tensor:
    import torch

    return torch.cat(parts, dim)


def _on_a_new_dim(parts: list[Tensor]) -> Tensor:
    import torch

    return torch.stack(parts)


def _part(dim: int, start: int, size: int, parts: list[Tensor]) -> Tensor:
    return parts[0].narrow(dim, start, size)


def _equal(one: Weight, other: Weight) -> Tensor:
    import torch

    first, second = one.read(), other.read()
    if not torch.equal(first, second):
        names = " and ".join(f"`{weight.parts[0].name}`" for weight in (one, other))
        raise LoadError(f"{names} of {one.parts[0].file} differ; they are tied")
    return first
