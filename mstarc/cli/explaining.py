"""`mstarc explain`: the page of a code, or the list of all. Takes a code; prints."""

from __future__ import annotations

import json
import re
import sys
from difflib import get_close_matches

from mstarc.cli.findings import colours
from mstarc.cli.guard import OK, USAGE, Failure
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Rule
from mstarc.diagnostics.machine import explain_page
from mstarc.diagnostics.rules import rule_state
from mstarc.plan import rules as link_rules

RULES: dict[str, Rule] = dict(
    sorted(rules.RULES.items() | {(r.code, r) for r in vars(link_rules).values() if isinstance(r, Rule)})
)
BY_NAME = {rule.name: rule.code for rule in RULES.values()}
_STATES = {
    "link": "found at link",
    "weights": "needs a checkpoint",
    "reserved": "nothing reports it yet",
    "internal": "a fault of mstarc",
}


def run_explain(code: str | None, listed: bool, format: str) -> int:
    """Print one page, or with `listed` one line a rule."""
    if listed == (code is not None):
        raise Failure("name one code, or give --list", USAGE)
    if code is None:
        sys.stdout.write(_list(format))
        return OK
    known = RULES.get(code.upper()) or next((r for r in RULES.values() if r.name == code.lower()), None)
    if known is None:
        hint = f"did you mean {close}?" if (close := _near(code)) else "`mstarc explain --list` shows all codes"
        raise Failure(f"there is no rule `{code}`", USAGE, help=hint)
    page = explain_page(known.code)
    if format == "json":
        document = {**_row(known.code), "page": page}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return OK
    text = page or f"# {known.code} {known.name}\n\n{known.summary}\n"
    if colours(sys.stdout):
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        sys.stdout.write(text)
    return OK


def _near(code: str) -> str | None:
    """The code that was meant. A code of the right form is near no other: its number is no slip of the pen."""
    if re.fullmatch(r"MC[0-9]{3}", code.upper()):
        return None
    close = get_close_matches(code.upper(), RULES, n=1)
    close += [BY_NAME[name] for name in get_close_matches(code.lower(), BY_NAME, n=1)]
    return close[0] if close else None


def _list(format: str) -> str:
    if format == "json":
        return json.dumps([_row(code) for code in RULES], indent=2, ensure_ascii=False) + "\n"
    width = max(len(rule.name) for rule in RULES.values())
    lines = []
    for code, rule in RULES.items():
        state = _STATES.get(rule_state(code))
        note = f" ({state})" if state else ""
        lines.append(f"{code}  {rule.severity:<7}  {rule.name:<{width}}  {rule.summary}{note}")
    return "\n".join(lines) + "\n"


def _row(code: str) -> dict[str, str]:
    rule = RULES[code]
    return {
        "code": code,
        "name": rule.name,
        "level": rule.severity,
        "summary": rule.summary,
        "state": rule_state(code),
    }
