"""The outermost frame: what a verb raises becomes one line on standard error and an exit status.

`Failure` is what a verb raises on purpose. Anything else is a fault of mstarc: `crash` keeps what shows it again.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

OK, FINDINGS, USAGE, STALE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 70, 130


class Failure(Exception):
    """A verb cannot go on for a reason that the user can act on. `status` is the exit status; the message stands alone."""

    def __init__(self, message: str, status: int = FINDINGS, help: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.help = help


class _Session:
    """Of this process: whether tracebacks are wanted, and the command line, to be repeated with them."""

    debug = False
    args: tuple[str, ...] = ()


def set_debug(debug: bool, args: Sequence[str] = ()) -> None:
    """Whether an internal error shows its traceback. `args`: the command line without the name of the program."""
    _Session.debug = debug
    _Session.args = tuple(args)


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return _Session.debug


def session_args() -> tuple[str, ...]:
    """The command line without the name of the program."""
    return _Session.args


def shielded(step: Callable[[], int]) -> int:
    """The exit status of a step, whatever it raises."""
    try:
        status = step()
        if not sys.stdout.closed:
            sys.stdout.flush()
    except Failure as failure:
        return _fail(failure)
    except BrokenPipeError as error:
        if reader_left(sys.stdout):
            # `| head` has seen enough. Point stdout elsewhere, or the flush at exit would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return OK
        return FINDINGS if reader_left(sys.stderr) else _fault(error, str(error))
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except RecursionError as error:
        return _fault(error, "it ran out of stack")
    except Exception as error:
        return _fault(error, str(error))
    return status


def reader_left(stream: TextIO) -> bool:
    """Whether nobody reads any more what is written to a stream. Other pipes break, too: of a worker, of a socket."""
    try:
        waiting = select.poll()
        waiting.register(stream, select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))
    except (OSError, ValueError, TypeError):  # it is closed, or no file
        return False


def say(text: str) -> None:
    """One line on standard error. Never raises: there is nobody left to tell."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def _fail(failure: Failure) -> int:
    say(f"error: {failure}")
    if failure.help:
        say(f"  help: {failure.help}")
    return failure.status


def _fault(error: BaseException, what: str) -> int:
    from mstarc.cli.crash import tell_fault

    tell_fault(error, f"{type(error).__name__}: {what}")
    return INTERNAL
