"""Written by mstarc from bagel.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "bagel"
CONDUCTOR = "Bagel"
WORKER = "Bagel"
