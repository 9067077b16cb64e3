"""Written by mstarc from qwen3_omni.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "qwen3_omni"
CONDUCTOR = "Qwen3Omni"
WORKER = "Qwen3Omni"
