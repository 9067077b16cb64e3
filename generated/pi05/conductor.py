"""The conductor of `pi05`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Pi05(ConductorProgram):
    MODEL = "pi05"
    PARAMS = (Param("flow_steps", "int", default=10, low=1, high=100),)
    ENTRIES = (
        Entry(
            "act",
            inputs=(
                Input("images", "parts", members=("image",)),
                Input("task", "text"),
                Input("state", "tensor", dtype="f32", dims=("R",), optional=True),
            ),
            outputs=(("action", False),),
        ),
    )
    RESULTS = {"prompt": 1, "cameras": 1}

    def act(self, request: RequestRun) -> Steps:
        """request act(images: list(image), task: text, state: f32[R]?) -> action"""
        cameras = yield request.extern("cameras", request.inputs.images)
        prompt = yield request.extern("prompt", request.inputs.task, request.inputs.state)
        yield request.start("look", cameras, prompt)
        yield request.walk("flow")
        return ()

    def look_need(self, request: RequestRun, need: Need, images: Any, ids: Any) -> None:
        """walk look writes at most"""
        rows_C = need.rows(images)
        rows_T = need.rows(ids)
        need.write("prefix", None if None in (rows_C, rows_T) else request.config.rows * rows_C + rows_T)

    def flow_need(self, request: RequestRun, need: Need) -> None:
        """walk flow writes no context"""
