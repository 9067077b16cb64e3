"""Written by mstarc from ask.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "ask"
CONDUCTOR = "Ask"
WORKER = "Ask"
