"""The form of the rules under `components.NODE.weights` of a binding: what each verb takes. What they do is in `mstarc_runtime.weights`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from mstarc.shapes import Path, Problem

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


def weight_rules(value: Any, path: Path, problems: list[Problem]) -> Any:
    """A list of rules. What is wrong with one is told at its place: the rule, or the key of it."""
    if not isinstance(value, list):
        problems.append(Problem(path, "is not a list of rules"))
        return value
    for number, rule in enumerate(value, 1):
        at = (*path, str(number - 1))
        verbs = [verb for verb in _RULES if isinstance(rule, dict) and verb in rule]
        if len(verbs) != 1:
            what = f"has {' and '.join(verbs)}; a rule has one of" if verbs else "is not one of"
            problems.append(Problem(at, f"(rule {number}) {what} {', '.join(_RULES)}"))
            continue
        named = f"(rule {number}, `{verbs[0]}`)"
        wrong = _wrong_rule(verbs[0], rule, at)
        if not wrong:
            signs = _wrong_names(verbs[0], rule)
            wrong = [Problem(at, signs)] if signs else []
        problems += (each if each.known else replace(each, what=f"{named} {each.what}") for each in wrong)
    return value


def _wrong_rule(verb: str, rule: dict[Any, Any], at: Path) -> list[Problem]:
    """What is wrong with the keys and values of a rule."""
    several = verb in _LISTS and (verb == "stack" or isinstance(rule[verb], list))
    known: dict[str, type] = {
        verb: list if several else str,
        **_RULES[verb],
        **({} if verb == "drop" else {"optional": bool}),
    }
    wrong = [Problem((*at, str(key)), "is unknown", tuple(known)) for key in rule if key not in known]
    for key, kind in known.items():
        value = rule.get(key)
        if value is not None:
            what = _wrong_value(verb, value, kind)
            wrong += [Problem((*at, key), what)] if what else []
        elif key not in ("dim", "optional") and not (verb == "transform" and key == "to"):
            wrong.append(Problem(at, f"has no `{key}`"))
    return wrong or (_wrong_transform(rule, at) if verb == "transform" else [])


def _wrong_value(verb: str, value: Any, kind: type) -> str:
    """What is wrong with a value that is to be of this kind, or ""."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return f"is no {_KINDS[kind]}"
    if isinstance(value, list) and not (len(value) > (verb != "drop") and all(isinstance(name, str) for name in value)):
        return f"is not a list of {'texts' if verb == 'drop' else 'two texts or more'}"
    return "is below 0" if isinstance(value, int) and value < 0 else ""


_KINDS: dict[type, str] = {list: "list", int: "number", str: "text", bool: "truth value"}


def _wrong_transform(rule: dict[str, Any], at: Path) -> list[Problem]:
    takes = _names(rule["transform"])
    if rule["by"] not in _TRANSFORMS:
        return [Problem((*at, "by"), f"is not one of {', '.join(_TRANSFORMS)}")]
    due = _TRANSFORMS[rule["by"]]
    if len(takes) != due:
        what = f"has {len(takes)} name{'s' if len(takes) > 1 else ''}, and `{rule['by']}` takes {due}"
        return [Problem((*at, "transform"), what)]
    return [] if len(takes) == 1 or "to" in rule else [Problem(at, "has no `to`")]


def _wrong_names(verb: str, rule: dict[str, Any]) -> str:
    """What is wrong with the signs of the names, or "". `stack` and `experts` take a `#` away; else a new name has all signs, or none."""
    takes, made = ([_signs(name) for name in _names(rule.get(key, []))] for key in (verb, "to"))
    if verb == "drop":
        return ""
    if verb in ("stack", "experts"):
        if any(sign.startswith("#") for name in made for sign in name):
            return "makes a `#`"
        if any(name.count("#") > 1 for name in takes) or (verb == "experts" and takes[0].count("#") != 1):
            return "does not have one `#`, in what it takes"
        takes = [[sign for sign in name if sign != "#"] for name in takes]
    if any(len(sign) > 2 and sign.startswith("#") for name in takes for sign in name):
        return "counts on from a `#` in what it takes"
    counted = {tuple(place for place, sign in enumerate(name) if sign.startswith("#")) for name in takes}
    if len({len(name) for name in takes}) > 1 or len(counted) > 1:
        return "has names that do not have equally many `*`, or a `#` in another place"
    for name in made:
        numbers = {place for place, sign in enumerate(name) if sign.startswith("#")}
        if (name or verb != "rename") and (len(name) != len(takes[0]) or not numbers <= set(*counted)):
            return "has names that do not have equally many `*`, or a `#` in another place"
    return ""


def _names(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def _signs(name: str) -> list[str]:
    return re.findall(r"\*\*|\*|#(?:[+-]\d+)?", name)
