"""One worker process seen from its parent: start, output, death.

`WorkerProcess(loop, argv, env, fds, on_line, on_exit)` starts it in a session of its own. Its standard output and error
come as lines to `on_line`; `tail` keeps the last 50. Death is known at once (a pidfd in the event loop; a look every
50 ms where there is none): what is left of its session is killed, it is reaped, and `on_exit(status)` is called once;
after a moment for messages that are still on their way, if it ended by itself.
All of it runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

TAIL_LINES: Final = 50
LINE_MAX: Final = 8192  # bytes; a longer line is cut into lines of this length
_SHOWN = 400  # characters of a line in an error message
_POLL_S = 0.05
_LAST_WORDS_S = 0.05  # the I/O thread of our sockets has read by then what a process wrote before it ended
_READ = 65536


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A death. `code` or `signal` is set; `reason` says why the supervisor killed it, if it did; `tail`: its last lines."""

    rank: int
    epoch: int
    name: str
    code: int | None
    signal: int | None
    reason: str
    at: str
    tail: tuple[str, ...]

    @property
    def text(self) -> str:
        """For the operator: what happened, what it was doing, its last lines."""
        how = f"ended with status {self.code}" if self.signal is None else f"was ended by {_signal_name(self.signal)}"
        why = f" ({self.reason})" if self.reason else ""
        lines = "".join(f"\n  {line[:_SHOWN]}" for line in self.tail)
        return f"worker {self.name} {how}{why} while it was {self.at}" + (f"; its last lines:{lines}" if lines else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class WorkerProcess:
    """A started process. `status` is None while it runs, then its exit code, or minus the number of the signal."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Sequence[int],
        on_line: Callable[[str], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self.status: int | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.exited = asyncio.Event()
        self._loop = loop
        self._on_line = on_line
        self._on_exit = on_exit
        self._partial = b""
        self._timer: asyncio.TimerHandle | None = None
        self._pidfd = -1
        self._returned: int | None = None  # its status once it is reaped, when its id may belong to another process
        self._output, write = os.pipe()
        try:
            os.set_blocking(self._output, False)
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                env=dict(env),
                pass_fds=tuple(fds),
                start_new_session=True,  # an interrupt at the terminal goes to the parent alone, which stops in order
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(write)
        self.pid = self._process.pid
        loop.add_reader(self._output, self._read)
        self._watch()

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known. It may have ended while `status` is still None."""
        return self._returned is None

    def signal(self, number: int) -> None:
        """Send a signal to the process, or with SIGKILL to its whole session. Nothing if it is over."""
        if self._returned is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def abandon(self) -> None:
        """Kill it and stop watching, without the event loop: for a process that is left over when the loop cannot wait."""
        if self._returned is None:
            self.signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel: nothing more can be done
                self._process.wait(timeout=1.0)
            self._returned = -signal.SIGKILL
        if self.status is None:
            self.status = self._returned
            self._unwatch()

    # ------------------------------------------------------------------------------------------------------------ death

    def _watch(self) -> None:
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self.pid)
                self._loop.add_reader(self._pidfd, self._look)
                return
        self._timer = self._loop.call_later(_POLL_S, self._look)

    def _look(self) -> None:
        """Take note of its death, if it has died. It is a zombie until the reaping below, so its id is still its own."""
        self._timer = None
        if self._returned is not None:
            return
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if self._pidfd < 0:
                self._timer = self._loop.call_later(_POLL_S, self._look)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # children it has left behind
        self._returned = self._process.wait()
        self._close_pidfd()
        if self._returned < 0:
            self._finish()
        else:
            self._timer = self._loop.call_later(_LAST_WORDS_S, self._finish)

    def _finish(self) -> None:
        """The death becomes known, with all output that there is."""
        assert self._returned is not None
        self.status = self._returned
        self._read()
        self._line(self._partial)
        self._partial = b""
        self._unwatch()
        self.exited.set()
        self._on_exit(self.status)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_pidfd()
        self._close_output()

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    # ----------------------------------------------------------------------------------------------------------- output

    def _read(self) -> None:
        """Whatever output is there, up to a bound per turn while the process runs, so that a flood leaves room for others."""
        turns = 4 if self.status is None else 64
        while self._output >= 0 and turns:
            turns -= 1
            try:
                data = os.read(self._output, _READ)
            except BlockingIOError:
                return
            if not data:
                self._close_output()
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                self._line(line)
            while len(self._partial) >= LINE_MAX:
                self._line(self._partial[:LINE_MAX])
                self._partial = self._partial[LINE_MAX:]

    def _line(self, line: bytes) -> None:
        for at in range(0, len(line), LINE_MAX):
            text = line[at : at + LINE_MAX].decode(errors="replace").rstrip("\r")
            self.tail.append(text)
            self._on_line(text)

    def _close_output(self) -> None:
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1
