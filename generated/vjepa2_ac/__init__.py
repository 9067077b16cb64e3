"""Written by mstarc from vjepa2_ac.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "vjepa2_ac"
CONDUCTOR = "Vjepa2Ac"
WORKER = "Vjepa2Ac"
