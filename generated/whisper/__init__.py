"""Written by mstarc from whisper.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "whisper"
CONDUCTOR = "Whisper"
WORKER = "Whisper"
