"""The conductor of `bagel`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Bagel(ConductorProgram):
    MODEL = "bagel"
    PARAMS = (
        Param("think", "bool", default=False),
        Param("max_tokens", "int", default=1000, low=1, high=4096),
        Param("temperature", "float", default=0.0, low=0.0, high=2.0),
        Param("steps", "int", default=50, low=2, high=200),
        Param("time_shift", "float", default=3.0, low=0.1, high=10.0),
        Param("cfg_text", "float", default=4.0, low=0.0, high=20.0),
        Param("cfg_img", "float", computed=True, low=0.0, high=20.0),
        Param("cfg_above", "float", computed=True, low=0.0, high=1.0),
        Param("cfg_upto", "float", default=1.0, low=0.0, high=1.0),
        Param("renorm", "enum", computed=True, members=("global", "channel", "text_channel")),
        Param("renorm_min", "float", default=0.0, low=0.0, high=1.0),
        Param("height", "int", default=1024, low=64, high=1024),
        Param("width", "int", default=1024, low=64, high=1024),
    )
    ENTRIES = (
        Entry(
            "chat",
            inputs=(Input("parts", "parts", members=("text", "image")),),
            outputs=(("text", True), ("image", True)),
        ),
    )
    SWITCHED = ("no_text", "no_image")
    RESULTS = {"write": 1, "layout": 1, "canvas": 2, "rewrap": 1}

    def chat(self, request: RequestRun) -> Steps:
        """request chat(parts: list(text | image)) -> text?, image?"""
        request.require(
            request.params.height % request.config.cell == 0 and request.params.width % request.config.cell == 0,
            "height % cell == 0 and width % cell == 0",
        )
        h, w = yield request.extern("canvas", request.inputs.parts, request.params.height, request.params.width)
        layout = yield request.extern("layout", request.inputs.parts, request.params.think)
        for part in layout:
            if part.kind == "text_part":
                yield request.start("read_text", part)
            elif part.kind == "image_part":
                yield request.start("read_image", part)
        if request.wants("image"):
            if request.params.think:
                (thought,) = yield request.walk("write")
                rewrap = yield request.extern("rewrap", thought)
                yield request.start("note", rewrap)
            yield request.walk("draw", h, w)
        else:
            yield request.walk("write")
        return ()

    def read_text_need(self, request: RequestRun, need: Need, part: Any) -> None:
        """walk read_text writes at most"""
        rows_T = need.rows(part.ids)
        need.fork("no_text", "main")
        need.write("main", rows_T)
        need.write("no_image", rows_T)

    def read_image_need(self, request: RequestRun, need: Need, part: Any) -> None:
        """walk read_image writes at most"""
        need.write("main", None)
        need.write("main", None)
        need.fork("no_text", "main")

    def write_need(self, request: RequestRun, need: Need) -> None:
        """walk write writes at most"""
        need.fork("draft", "main")
        need.write("draft", request.params.max_tokens)
        need.drop("draft")

    def note_need(self, request: RequestRun, need: Need, ids: Any) -> None:
        """walk note writes at most"""
        rows_T = need.rows(ids)
        need.write("main", rows_T)

    def draw_need(self, request: RequestRun, need: Need, h: Any, w: Any) -> None:
        """walk draw writes no context"""

    def let_editing(self, request: RequestRun) -> object:
        """let editing"""
        return request.given("image") and request.wants("image")

    def let_guided(self, request: RequestRun) -> object:
        """let guided"""
        return request.wants("image") and request.params.cfg_text > 1

    def default_cfg_img(self, request: RequestRun) -> object:
        """default of param cfg_img"""
        return 2.0 if self.let_editing(request) else 1.0

    def default_cfg_above(self, request: RequestRun) -> object:
        """default of param cfg_above"""
        return 0.0 if self.let_editing(request) else 0.4

    def default_renorm(self, request: RequestRun) -> object:
        """default of param renorm"""
        return "text_channel" if self.let_editing(request) else "global"

    def context_no_text(self, request: RequestRun) -> bool:
        """context no_text is on"""
        return bool(self.let_guided(request))

    def context_no_image(self, request: RequestRun) -> bool:
        """context no_image is on"""
        return bool(self.let_guided(request) and request.params.cfg_img > 1)
