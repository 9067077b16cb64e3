"""A stateless op captured once per shapes of its arguments: static inputs, one replay and copies of the outputs a call.

Only shapes that are known before the first request are captured (`usual`); a call with others, and an op that cannot be captured,
runs kernel by kernel. An op cannot be captured if it waits for the device (a value or a length that the host looks at).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mstarc_runtime.engines.op_graphs import Capture

Form: TypeAlias = tuple[tuple[torch.dtype, tuple[int, ...]], ...]  # dtype and dims of each argument


class ShapeGraphs:
    """The method of one op, with replays by the form of its arguments. Results are as the method's, and the caller's own."""

    def __init__(
        self,
        method: Callable[..., Any],
        usual: Sequence[Form],
        device: torch.device,
        capture: Capture,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Captures each form of `usual`; raises what the method raises on zeros, RuntimeError if it waits for the device, and
        TypeError if it gives something else than tensors."""
        self._method = method
        self._replays: dict[Form, tuple[list[Tensor], Callable[[], Any]]] = {}
        for done, form in enumerate(usual):
            progress(done, len(usual))
            inputs = [torch.zeros(dims, dtype=dtype, device=device) for dtype, dims in form]

            def work(inputs: list[Tensor] = inputs) -> Any:
                return method(*inputs)

            with torch.no_grad():
                _check_results(work())  # compiles kernels and settles what the component keeps
                with _never_waiting(device):
                    work()
                self._replays[form] = inputs, capture.capture(work)
        progress(len(usual), len(usual))

    def __call__(self, *args: Any) -> Any:
        """The method's results for arguments of one request."""
        held = self._replays.get(_form(args))
        if held is None:
            return self._method(*args)
        inputs, replay = held
        with torch.no_grad():
            for static, value in zip(inputs, args, strict=True):
                static.copy_(value)
            results = replay()  # the next replay overwrites them
            return results.clone() if isinstance(results, Tensor) else tuple(result.clone() for result in results)


def _form(args: Sequence[Any]) -> Form:
    """The form of arguments; one that no capture has if they are not all tensors."""
    return tuple((arg.dtype, tuple(arg.shape)) for arg in args if isinstance(arg, Tensor))


def _check_results(results: Any) -> None:
    for result in results if isinstance(results, tuple) else (results,):
        if not isinstance(result, Tensor):
            raise TypeError(f"it gives a {type(result).__name__}, not a tensor")


@contextmanager
def _never_waiting(device: torch.device) -> Iterator[None]:
    """Work that makes the host wait for a GPU raises in here: a capture that fails half-way would spoil the memory pool of others."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
