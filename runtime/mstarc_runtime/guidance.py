"""Classifier-free guidance with one or two branches and a limit on the norm: the built-in `guide`, for torch and numpy alike.

BAGEL's released sampler (arXiv:2505.14683) defines the two-branch form; one branch without a limit is the plain rule of Ho and
Salimans (arXiv:2207.12598), v' = a + s (v - a).
"""

from __future__ import annotations

from typing import Any

from mstarc_runtime.program import ABSENT


def guide(v: Any, *branches_and_settings: Any) -> Any:
    """guide(v, a, s_a, renorm, least) or guide(v, a, b, s_a, s_b, renorm, least); v, a, b have one shape, [N, d].

    v is given back untouched where a is absent or s_a <= 1: then there is no guidance at all, by b neither. Else g = a + s_a (v - a),
    and with b present and s_b > 1, g = b + s_b (g - b). renorm, if given, scales g by clamp(|v| / (|g| + 1e-8), least, 1): `global`
    with the norm of everything, `channel` with that of each last dim, `text_channel` as `channel` but before b takes part.
    """
    a, b, scale, scale_b, renorm, least = _taken(branches_and_settings)
    if _absent(a) or scale <= 1:
        return v
    guided = a + scale * (v - a)
    if renorm == "text_channel":
        guided = _renormed(guided, v, least, by_row=True)
    if not _absent(b) and scale_b > 1:
        guided = b + scale_b * (guided - b)
    if renorm in ("global", "channel"):
        guided = _renormed(guided, v, least, by_row=renorm == "channel")
    return guided


def _taken(given: tuple[Any, ...]) -> tuple[Any, Any, float, float, str, float]:
    """a, b, their scales, renorm and its least factor, with what may be left out."""
    two = _absent(given[1]) or hasattr(given[1], "shape")
    a, b, scale, scale_b, *limit = given if two else (given[0], ABSENT, given[1], 1.0, *given[2:])
    renorm = limit[0] if limit else ""
    least = limit[1] if len(limit) > 1 else 0.0
    return a, b, scale, scale_b, renorm, least


def _absent(branch: Any) -> bool:
    return branch is None or branch is ABSENT


def _renormed(guided: Any, v: Any, least: float, by_row: bool) -> Any:
    return guided * (_norm(v, by_row) / (_norm(guided, by_row) + 1e-8)).clip(least, 1.0)


def _norm(x: Any, by_row: bool) -> Any:
    return ((x * x).sum(axis=-1, keepdims=True) if by_row else (x * x).sum()) ** 0.5
