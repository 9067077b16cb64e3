"""Rules of linking that the table of the checks does not have: what can be wrong with a placement or only with a placement."""

from __future__ import annotations

from mstarc.diagnostics.core import Rule

MC606 = Rule("MC606", "placement-name", "error", "a placement names only nodes and ranks that there are")
MC607 = Rule("MC607", "placement-not-built", "error", "a placement asks for nothing that is not built yet")
MC608 = Rule("MC608", "placement-syntax", "error", "a placement is TOML with the keys that the format has")
MC609 = Rule(
    "MC609",
    "repeated-rank",
    "error",
    "each rank is described once, and ranks count from 0 without a gap",
    help="number the ranks 0, 1, 2, … and describe each once",
)
MC610 = Rule(
    "MC610",
    "plan-contradicted",
    "error",
    "what a plan says of a walk is what the body of the walk says",
    help="write the package anew with `mstarc compile`; a plan is not edited by hand",
)
