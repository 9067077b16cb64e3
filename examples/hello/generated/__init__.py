"""Written by mstarc from hello.walk; do not edit. `mstarc compile --check` says whether it is up to date."""

MODEL = "hello"
CONDUCTOR = "Hello"
WORKER = "Hello"
