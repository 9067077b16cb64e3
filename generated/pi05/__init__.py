"""Written by mstarc from pi05.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "pi05"
CONDUCTOR = "Pi05"
WORKER = "Pi05"
