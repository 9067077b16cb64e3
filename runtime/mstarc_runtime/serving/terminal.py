"""The terminal of `run` and `call`: answers on stdout, everything about them on stderr."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from mstarc_runtime.abi.messages import Loading


class Status:
    """One line on stderr that is rewritten while something loads; a plain line at the end. Quiet if stderr is no terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._start = time.monotonic()
        self._steps: dict[int, Loading] = {}

    def step(self, message: Loading) -> None:
        """Show one step of one rank, with the progress of all ranks."""
        self._steps[message.rank] = message
        if not self._live:
            return
        done = sum(step.done for step in self._steps.values())
        total = sum(step.total for step in self._steps.values()) or 1
        bar = "█" * round(20 * done / total)
        self._rewrite(f"{bar:░<20} rank {message.rank}: {message.what}"[:100])

    def loaded(self, what: str) -> None:
        """Everything is there."""
        if self._live:
            self._rewrite("")
        self.say(f"loaded {what} in {time.monotonic() - self._start:.1f} s")

    def say(self, text: str) -> None:
        """A line of its own."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def fail(self, text: str) -> None:
        """A line about what went wrong."""
        if self._live:
            self._rewrite("")
        self.say(f"error: {text}")

    def _rewrite(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text}")
        self._stream.flush()
