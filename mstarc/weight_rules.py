"""The form of the rules under `components.NODE.weights` of a binding: what each verb takes. What they do is in `mstarc_runtime.weights`."""

from __future__ import annotations

import re
from typing import Any

_RULES: dict[str, dict[str, type]] = {
    "strip": {},
    "drop": {},
    "rename": {"to": str},
    "stack": {"to": str, "dim": int},
    "split": {"to": list, "dim": int},
    "experts": {"to": str},
    "tie": {"to": str},
    "transform": {"by": str, "to": str},
}
_LISTS = ("stack", "drop", "transform")  # may take several names
_TRANSFORMS = {"transpose": 1, "flatten": 1, "add_one": 1, "weight_norm": 2}  # how many names each takes


def weight_rules(value: Any) -> None:
    """Raises ValueError for the first rule that is none."""
    if not isinstance(value, list):
        raise ValueError("is not a list of rules")
    for number, rule in enumerate(value, 1):
        verbs = [verb for verb in _RULES if isinstance(rule, dict) and verb in rule]
        if len(verbs) != 1:
            raise ValueError(f"has a rule {number} that is not one of {', '.join(_RULES)}")
        wrong = _wrong_rule(verbs[0], rule) or _wrong_names(verbs[0], rule)
        if wrong:
            raise ValueError(f"has a rule {number} (`{verbs[0]}`) {wrong}")


def _wrong_rule(verb: str, rule: dict[Any, Any]) -> str:
    """What is wrong with the keys and values of a rule, or ""."""
    several = verb in _LISTS and (verb == "stack" or isinstance(rule[verb], list))
    known: dict[str, type] = {
        verb: list if several else str,
        **_RULES[verb],
        **({} if verb == "drop" else {"optional": bool}),
    }
    for key in rule:
        if key not in known:
            return f"with the unknown key `{key}`"
    for key, kind in known.items():
        value = rule.get(key)
        if value is None:
            if key not in ("dim", "optional") and not (verb == "transform" and key == "to"):
                return f"without `{key}`"
        elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            return f"whose `{key}` is no {_KINDS[kind]}"
        elif isinstance(value, list) and not (
            len(value) > (verb != "drop") and all(isinstance(name, str) for name in value)
        ):
            return f"whose `{key}` is not a list of {'texts' if verb == 'drop' else 'two texts or more'}"
        elif isinstance(value, int) and value < 0:
            return f"whose `{key}` is below 0"
    return _wrong_transform(rule) if verb == "transform" else ""


_KINDS: dict[type, str] = {list: "list", int: "number", str: "text", bool: "truth value"}


def _wrong_transform(rule: dict[str, Any]) -> str:
    takes = _names(rule["transform"])
    if rule["by"] not in _TRANSFORMS:
        return f"whose `by` is not one of {', '.join(_TRANSFORMS)}"
    due = _TRANSFORMS[rule["by"]]
    if len(takes) != due:
        return f"with {len(takes)} name{'s' if len(takes) > 1 else ''}, and `{rule['by']}` takes {due}"
    return "" if len(takes) == 1 or "to" in rule else "without `to`"


def _wrong_names(verb: str, rule: dict[str, Any]) -> str:
    """What is wrong with the signs of the names, or "". `stack` and `experts` take a `#` away; else a new name has all signs, or none."""
    takes, made = ([_signs(name) for name in _names(rule.get(key, []))] for key in (verb, "to"))
    if verb == "drop":
        return ""
    if verb in ("stack", "experts"):
        if any(sign.startswith("#") for name in made for sign in name):
            return "that makes a `#`"
        if any(name.count("#") > 1 for name in takes) or (verb == "experts" and takes[0].count("#") != 1):
            return "that does not have one `#`, in what it takes"
        takes = [[sign for sign in name if sign != "#"] for name in takes]
    if any(len(sign) > 2 and sign.startswith("#") for name in takes for sign in name):
        return "that counts on from a `#` in what it takes"
    counted = {tuple(place for place, sign in enumerate(name) if sign.startswith("#")) for name in takes}
    if len({len(name) for name in takes}) > 1 or len(counted) > 1:
        return "whose names do not have equally many `*`, or a `#` in another place"
    for name in made:
        numbers = {place for place, sign in enumerate(name) if sign.startswith("#")}
        if (name or verb != "rename") and (len(name) != len(takes[0]) or not numbers <= set(*counted)):
            return "whose names do not have equally many `*`, or a `#` in another place"
    return ""


def _names(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def _signs(name: str) -> list[str]:
    return re.findall(r"\*\*|\*|#(?:[+-]\d+)?", name)
