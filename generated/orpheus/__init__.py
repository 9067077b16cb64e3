"""Written by mstarc from orpheus.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "orpheus"
CONDUCTOR = "Orpheus"
WORKER = "Orpheus"
