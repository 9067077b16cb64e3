"""The tensors of a checkpoint under the names of a component's parameters. Takes the rules of a binding's `weights`; gives tensors.

Rules act one after the other on all tensors. In a name, `*` stands for one part between dots and `**` for any number of them; what they
stand for in the pattern is put in their places in the new name, in order. `#` is the number of an expert.

strip: PREFIX                     only what is under the prefix, without it
drop: NAME                        not used
rename: NAME, to: NAME
stack: [NAME, …], to: NAME        end to end along `dim` (0 if left out)
split: NAME, to: [NAME, …]        equal parts along `dim`
experts: NAME, to: NAME           one tensor with the experts on a new dim 0
tie: NAME, to: NAME               one tensor under both names
transform: NAME, by: HOW          transpose: [a, b] -> [b, a]; flatten: [a, b, …] -> [a, b * …]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mstarc_runtime.errors import LoadError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

Tensors: TypeAlias = "dict[str, Tensor]"
VERBS = ("strip", "drop", "rename", "stack", "split", "experts", "tie", "transform")
HOWS: dict[str, Callable[[Any], Any]] = {"transpose": lambda x: x.t().contiguous(), "flatten": lambda x: x.flatten(1)}
_HOLES = re.compile(r"\*\*|\*|#")


def read_tensors(path: Path) -> Tensors:
    """Every tensor of a safetensors file, or of a folder of them. They stay in the file until they are used. Raises LoadError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from mstarc_runtime.models.shards import shards

    found: Tensors = {}
    for file in shards(path) if path.is_dir() else [path]:
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise LoadError(f"{file} cannot be read: {error}") from error
    return found


def mapped(tensors: Mapping[str, Tensor], rules: Sequence[Mapping[str, Any]]) -> Tensors:
    """The tensors after all rules. Raises LoadError for a rule that fits nothing, lacks a part or would give one name twice."""
    found = dict(tensors)
    for number, rule in enumerate(rules, 1):
        verb = next(verb for verb in VERBS if verb in rule)
        try:
            found = _APPLY[verb](found, rule[verb], rule)
        except (_Misfit, IndexError, RuntimeError, ValueError) as misfit:  # torch: shapes that differ, no such dim
            raise LoadError(f"rule {number} of `weights`, `{verb}: {_said(rule[verb])}`: {misfit}") from None
    return found


def fill(module: Module, tensors: Mapping[str, Tensor], what: str, unused: Sequence[str] = ()) -> None:
    """Make the tensors the module's parameters and buffers, without a copy. unused: patterns of names that it may leave alone.

    Raises LoadError for a tensor that is missing, left over or of another shape, by its name.
    """
    due = module.state_dict()
    ignored = [_pattern(name) for name in unused]
    left = [name for name in tensors if name not in due and not any(p.fullmatch(name) for p in ignored)]
    for problem, names in (("lacks", sorted(due.keys() - tensors.keys())), ("does not use", sorted(left))):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise LoadError(f"{what} {problem} `{names[0]}`{more}")
    for name, value in due.items():
        if tensors[name].shape != value.shape:
            raise LoadError(f"`{name}` of {what} is {list(tensors[name].shape)}, not {list(value.shape)}")
    module.load_state_dict({name: tensors[name] for name in due}, assign=True)


# ------------------------------------------------------------------------------------------------------------------ rules


class _Misfit(Exception):
    """Why a rule cannot be applied."""


def _strip(tensors: Tensors, prefix: str, rule: Mapping[str, Any]) -> Tensors:
    return _any({name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)})


def _drop(tensors: Tensors, name: str, rule: Mapping[str, Any]) -> Tensors:
    gone = _any(_fits(tensors, name))
    return {name: x for name, x in tensors.items() if name not in gone}


def _rename(tensors: Tensors, name: str, rule: Mapping[str, Any]) -> Tensors:
    new = {old: _named(rule["to"], holes) for old, holes in _any(_fits(tensors, name)).items()}
    return _joined({n: x for n, x in tensors.items() if n not in new}, [(new[n], tensors[n]) for n in new])


def _stack(tensors: Tensors, names: Sequence[str], rule: Mapping[str, Any]) -> Tensors:
    import torch

    parts = [{tuple(holes): old for old, holes in _fits(tensors, name).items()} for name in names]
    made, gone = [], set[str]()
    for holes in _any({holes: None for part in parts for holes in part}):
        lacking = [name for name, part in zip(names, parts, strict=True) if holes not in part]
        if lacking:
            raise _Misfit(f"there is no `{_named(lacking[0], holes)}`")
        olds = [part[holes] for part in parts]
        made.append((_named(rule["to"], holes), torch.cat([tensors[old] for old in olds], rule.get("dim", 0))))
        gone |= set(olds)
    return _joined({name: x for name, x in tensors.items() if name not in gone}, made)


def _split(tensors: Tensors, name: str, rule: Mapping[str, Any]) -> Tensors:
    made, dim, count = [], rule.get("dim", 0), len(rule["to"])
    old = _any(_fits(tensors, name))
    for whole, holes in old.items():
        shape = tensors[whole].shape
        if dim >= len(shape) or shape[dim] % count:
            raise _Misfit(f"`{whole}` of {list(shape)} has no {count} equal parts along dim {dim}")
        parts = tensors[whole].chunk(count, dim)
        made += [(_named(to, holes), part) for to, part in zip(rule["to"], parts, strict=True)]
    return _joined({n: x for n, x in tensors.items() if n not in old}, made)


def _experts(tensors: Tensors, name: str, rule: Mapping[str, Any]) -> Tensors:
    import torch

    place = _HOLES.findall(name).index("#")
    groups: dict[tuple[str, ...], dict[int, str]] = {}
    for old, holes in _any(_fits(tensors, name)).items():
        groups.setdefault((*holes[:place], *holes[place + 1 :]), {})[int(holes[place])] = old
    made = []
    for rest, members in groups.items():
        if sorted(members) != list(range(len(members))):
            lacking = min(set(range(max(members))) - set(members))
            raise _Misfit(f"expert {lacking} of `{_named(rule['to'], rest)}` is missing")
        made.append((_named(rule["to"], rest), torch.stack([tensors[members[k]] for k in range(len(members))])))
    gone = {old for members in groups.values() for old in members.values()}
    return _joined({n: x for n, x in tensors.items() if n not in gone}, made)


def _tie(tensors: Tensors, name: str, rule: Mapping[str, Any]) -> Tensors:
    return _joined(tensors, [(_named(rule["to"], h), tensors[old]) for old, h in _any(_fits(tensors, name)).items()])


def _transform(tensors: Tensors, name: str, rule: Mapping[str, Any]) -> Tensors:
    changed = _any(_fits(tensors, name))
    for old in changed:
        if tensors[old].dim() < 2 or (rule["by"] == "transpose" and tensors[old].dim() != 2):
            raise _Misfit(f"`{old}` is {list(tensors[old].shape)}")
    return {n: HOWS[rule["by"]](x) if n in changed else x for n, x in tensors.items()}


_APPLY: dict[str, Callable[[Tensors, Any, Mapping[str, Any]], Tensors]] = {
    "strip": _strip,
    "drop": _drop,
    "rename": _rename,
    "stack": _stack,
    "split": _split,
    "experts": _experts,
    "tie": _tie,
    "transform": _transform,
}


# ------------------------------------------------------------------------------------------------------------------ names


def _pattern(name: str) -> re.Pattern[str]:
    holes = {"**": r"(.+)", "*": r"([^.]+)", "#": r"(\d+)"}
    texts, signs = _HOLES.split(name), _HOLES.findall(name)
    return re.compile("".join(re.escape(t) + (holes[signs[k]] if k < len(signs) else "") for k, t in enumerate(texts)))


def _fits(tensors: Mapping[str, Any], name: str) -> dict[str, tuple[str, ...]]:
    """The names that fit a pattern -> what its holes stand for."""
    pattern = _pattern(name)
    return {old: match.groups() for old in tensors if (match := pattern.fullmatch(old)) is not None}


def _named(name: str, holes: Sequence[str]) -> str:
    filled = iter(holes)
    return _HOLES.sub(lambda hole: next(filled), name)


def _any(found: dict[Any, Any]) -> dict[Any, Any]:
    if not found:
        raise _Misfit("fits no tensor")
    return found


def _joined(tensors: Tensors, more: Sequence[tuple[str, Tensor]]) -> Tensors:
    found = dict(tensors)
    for name, value in more:
        if name in found:
            raise _Misfit(f"there are two tensors `{name}`")
        found[name] = value
    return found


def _said(what: str | Sequence[str]) -> str:
    return what if isinstance(what, str) else f"[{', '.join(what)}]"
