"""Independence: MC104 shared-state-race, MC105 unordered-writers. Takes a program; reports what two arms both touch.

An arm is an arm of `together`, or one statement of `parallel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Par, Program, Together
from mstarc.ir.visit import every_op
from mstarc.passes.effects import Effect, Names, effects_of, effects_of_op
from mstarc.source import Span

_WORDS = {
    "context": "context",
    "state": "state",
    "sampler": "sampler",
    "site": "drawing site",
    "modality": "modality",
    "send": "stream",
    "take": "stream",
}
_WHY = {
    "context": "which write comes first would depend on timing",
    "state": "which update comes first would depend on timing",
    "sampler": "a sampler's own draws are its history, so the order of draws is part of the result",
    "site": "draws are counted per site, so the same walk cannot draw in two arms",
    "modality": "the order of what the client sees would depend on timing",
    "send": "items of two arms would be merged by arrival",
    "take": "which arm gets an item would depend on timing",
}


def check_control(program: Program, report: Collector) -> None:
    """Every `together` and every `parallel`."""
    names = Names(program)
    for request in program.requests:
        for op in every_op(request.body):
            if isinstance(op, Together):
                arms = [(f"`{arm.label}`", list(effects_of(arm.body, names))) for arm in op.arms]
                _check_arms("arms", arms, op.span, report)
    for walk in program.walks:
        for op in every_op(walk.body):
            if isinstance(op, Par):
                rows = enumerate(op.body.ops, 1)
                arms = [(f"statement {i}", list(effects_of_op(inner, names, walk.name))) for i, inner in rows]
                _check_arms("statements of `parallel`", arms, op.span, report)


def _check_arms(what: str, arms: Sequence[tuple[str, list[Effect]]], span: Span, report: Collector) -> None:
    """Report each thing that a later arm touches although an earlier one owns it, once a thing."""
    seen: dict[tuple[str, str], tuple[str, Effect]] = {}
    done: set[tuple[str, str]] = set()
    for arm, effects in arms:
        for effect in _strongest(effects):
            key = (effect.kind, effect.name)
            before = seen.get(key)
            if before is None:
                seen[key] = (arm, effect)
            elif before[0] != arm and not (before[1].reads and effect.reads) and key not in done:
                done.add(key)
                _race(what, before, (arm, effect), span, report)


def _strongest(effects: Iterable[Effect]) -> list[Effect]:
    """One effect a thing, a change rather than a read."""
    best: dict[tuple[str, str], Effect] = {}
    for effect in effects:
        key = (effect.kind, effect.name)
        if key not in best or (best[key].reads and not effect.reads):
            best[key] = effect
    return list(best.values())


def _race(what: str, a: tuple[str, Effect], b: tuple[str, Effect], span: Span, report: Collector) -> None:
    effect = b[1]
    name = f"{_WORDS[effect.kind]} `{effect.name}`"
    if effect.kind in ("send", "take"):
        verb = "send on" if effect.kind == "send" else "take from"
        message = f"two {what} {verb} {name}: {a[0]} and {b[0]}"
        rule = rules.MC105
    else:
        message = f"two {what} use {name}: {a[0]} and {b[0]}"
        rule = rules.MC104
    report.report(
        rule,
        message,
        effect.span,
        f"{b[0]} {'reads' if effect.reads else 'uses'} it here",
        secondary=(
            Label(a[1].span, f"{a[0]} {'reads' if a[1].reads else 'uses'} it here"),
            Label(span, "these run at once"),
        ),
        notes=(_WHY[effect.kind],),
        help="put both into one arm, in the order that is meant",
        subject=effect.name,
    )
