"""The conductor of `hello`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Hello(ConductorProgram):
    MODEL = "hello"
    PARAMS = (Param("max_steps", "int", default=10, low=1, high=1000),)
    ENTRIES = (
        Entry(
            "sums",
            inputs=(Input("start", "tensor", dtype="i64", dims=()),),
            outputs=(("scalar", False), ("tensor", False)),
        ),
    )
    ARMS = {"sums_counting": (("numbers",), ()), "sums_adding": ((), ("numbers",))}

    def sums(self, request: RequestRun) -> Steps:
        """request sums(start: i64) -> scalar, tensor"""
        yield request.together(
            counting=self.sums_counting(request, request.inputs.start),
            adding=self.sums_adding(request),
        )
        return ()

    def sums_counting(self, request: RequestRun, start: Any) -> Steps:
        """arm counting"""
        yield request.walk("count", start, closes=("numbers",))
        return ()

    def sums_adding(self, request: RequestRun) -> Steps:
        """arm adding"""
        yield request.walk("add")
        return ()

    def count_need(self, request: RequestRun, need: Need, start: Any) -> None:
        """walk count writes no context"""

    def add_need(self, request: RequestRun, need: Need) -> None:
        """walk add writes no context"""
