"""Host expressions that stay open until a request runs: what link hands to the runtime where a number depends on params or arguments.

A formula is plain JSON. Numbers, truth values, texts and lists stand for themselves; an object is one of

* `{"param": name}`: a param of the request,
* `{"arg": k}`: the value of the call's argument k, a host one,
* `{"rows": [k, dim]}`: the size of a dim of the call's argument k,
* `{"op": name, "of": [formula, ...]}`: an operator or built-in of the language (`OPS`), `neg`, `if` (condition, then, else),
  `index` (value, index), or `wants` and `given` of a modality.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Formula: TypeAlias = Any

OPS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "not": operator.not_,
    "neg": operator.neg,
    "index": operator.getitem,
    "min": min,
    "max": max,
    "len": len,
}


def evaluate(formula: Formula, params: Any, host: Any = None, args: Sequence[Any] = ()) -> Any:
    """The value in one call. params: by attribute; host: answers `wants` and `given`; args: of the call, in the op's order."""

    def value(part: Formula) -> Any:
        match part:
            case {"param": name}:
                return getattr(params, name)
            case {"arg": k}:
                return args[k]
            case {"rows": [k, dim]}:
                return args[k].shape[dim] if hasattr(args[k], "shape") else len(args[k])
            case {"op": "and", "of": [a, b]}:
                return value(a) and value(b)
            case {"op": "or", "of": [a, b]}:
                return value(a) or value(b)
            case {"op": "if", "of": [cond, a, b]}:
                return value(a if value(cond) else b)
            case {"op": "wants" | "given" as question, "of": [modality]}:
                return getattr(host, question)(modality)
            case {"op": name, "of": parts}:
                return OPS[name](*map(value, parts))
            case list():
                return [value(item) for item in part]
        return part

    return value(formula)


def formula_text(formula: Formula) -> str:
    """A formula as a spec would have it; an argument is called by its place."""
    match formula:
        case {"param": name}:
            return str(name)
        case {"arg": k}:
            return f"argument {k + 1}"
        case {"rows": [k, dim]}:
            return f"dim {dim} of argument {k + 1}"
        case {"op": "neg", "of": [a]}:
            return f"-{formula_text(a)}"
        case {"op": "if", "of": [cond, a, b]}:
            return f"if {formula_text(cond)} then {formula_text(a)} else {formula_text(b)}"
        case {"op": str(name), "of": [a, b]} if not name.isalpha() or name in ("and", "or"):
            return f"({formula_text(a)} {name} {formula_text(b)})"
        case {"op": name, "of": parts}:
            return f"{name}({', '.join(map(formula_text, parts))})"
    return str(formula)
