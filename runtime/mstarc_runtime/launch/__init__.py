"""Processes of an engine on one host.

- `supervisor`: `Supervisor`, in the conductor's event loop: starts, watches, restarts and stops the workers.
- `process`: one worker process seen from its parent.
- `child`: what a worker process is given (`Boot`) and its helpers: `read_boot`, `open_port`, `ParentWatch`.
- `backoff`: pauses between restarts. `lifesign`: which ranks have been silent for too long.
"""
