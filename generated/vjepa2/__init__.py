"""Written by mstarc from vjepa2.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "vjepa2"
CONDUCTOR = "Vjepa2"
WORKER = "Vjepa2"
