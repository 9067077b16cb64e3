"""`mstarc check --fix`: writes the safe fixes of what a check found and checks again, until none is left. Takes paths; gives a check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mstarc import remembered
from mstarc.checked import Checked
from mstarc.cli.formatting import replace_text
from mstarc.cli.guard import say
from mstarc.diagnostics.fixes import fixed, safe_fixes

ROUNDS = 10  # a fix may make room for another one


def fix_all(paths: Sequence[str], checked: Checked) -> Checked:
    """What is left to report after the fixes. Raises Failure if a file cannot be written."""
    done = False
    for _ in range(ROUNDS):
        fixes = safe_fixes(checked.findings)
        if not fixes:
            if checked.findings:
                say(f"nothing {'else ' if done else ''}can be fixed automatically")
            break
        for file, text in fixed(fixes, checked.sources).items():
            replace_text(Path(file), text)
        for fix in fixes:
            span = fix.edits[0][0]
            say(f"fixed {span.file}:{checked.sources[span.file].line_of(span.start)}: {fix.title}")
        checked, done = remembered.check(paths), True
    return checked
