"""`mstarc call`: one request without a server. The answer goes to stdout as it comes, sound and arrays to a file, the times to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from mstarc_runtime.conductor.engine import DEADLINE_S, Engine
from mstarc_runtime.conductor.requests import Event, RequestRun
from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.program import Entry, Part
from mstarc_runtime.serving.audio import pcm16
from mstarc_runtime.serving.playback import Playback
from mstarc_runtime.serving.saving import check_output, save, told
from mstarc_runtime.serving.surface import Surface
from mstarc_runtime.serving.terminal import Status
from mstarc_runtime.serving.text import TextReader
from mstarc_runtime.serving.walks import read_inputs


@dataclass(frozen=True, slots=True)
class Call:
    """What to run. `text` and `audio` become a chat message, or the input of that kind where the model has no chat."""

    inputs: Mapping[str, Any]
    params: Mapping[str, Any]
    wants: frozenset[str] = frozenset()
    request: str | None = None
    text: str | None = None
    audio: Path | None = None
    output: Path | None = None
    seed: int | None = None
    deadline_s: float = DEADLINE_S


def choose_entry(engine: Engine, surface: Surface | None, name: str | None) -> Entry:
    """The request to run: the named one, else the chat's, else the only one. Raises BadRequest."""
    if name is not None:
        if name not in engine.entries:
            raise BadRequest(f"no request `{name}`; there are {', '.join(engine.entries)}", "request", 404)
        return engine.entries[name]
    if surface is not None:
        return surface.entry
    if len(engine.entries) > 1:
        raise BadRequest(f"say which request to run: {', '.join(engine.entries)}", "request")
    return next(iter(engine.entries.values()))


def gather_inputs(entry: Entry, surface: Surface | None, call: Call) -> dict[str, Any]:
    """The request's inputs. Raises BadRequest if there is no place for `text` or `audio`, or the file cannot be read."""
    inputs = dict(call.inputs)
    if surface is not None and surface.entry is entry and (call.text is not None or call.audio is not None):
        parts = inputs.setdefault(surface.input, [])
        if call.text is not None:
            parts.append(Part("text", role="user", text=_utf8(call.text), message=0))
        if call.audio is not None:
            if not surface.audio_input:
                raise BadRequest("the model takes no audio", "audio")
            raw = "pcm16" if call.audio.suffix in (".pcm", ".raw") else None
            parts.append(Part("audio", role="user", data=_read(call.audio), format=raw, message=0))
        return inputs
    for kind, value in (("text", call.text), ("audio", call.audio)):
        if value is None:
            continue
        names = [item.name for item in entry.inputs if item.kind == kind]
        if len(names) != 1:
            raise BadRequest(f"request `{entry.name}` has {len(names)} inputs of kind {kind}; use --input name=…", kind)
        inputs[names[0]] = _read(value) if isinstance(value, Path) else value
    return inputs


def _utf8(text: str) -> str:
    """The text, if its bytes on the command line were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest("the text is not valid UTF-8", "text") from None
    return text


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}", "audio") from None


class Telling:
    """Shows a request's events, keeps its audio and measures it."""

    def __init__(self, surface: Surface | None, out: TextIO | None = None, reader: TextReader | None = None) -> None:
        """`reader` makes text of ids; without it they are those of the surface's decoder, and without that shown as they are."""
        self._out = sys.stdout if out is None else out
        known = surface.decoder if surface is not None else None
        self._reader = reader if reader is not None or known is None else TextReader(known)
        self._rate = surface.rate if surface is not None else 24000
        self._mid_line = False
        self._start = time.monotonic()
        self._first_text: float | None = None
        self._playback = Playback(self._start)
        self._ids = 0
        self.pcm = bytearray()

    @property
    def rate(self) -> int:
        return self._rate

    def take(self, event: Event) -> None:
        """One event."""
        if event.modality == "text":
            if self._first_text is None:
                self._first_text = event.time - self._start
            self._write(self._text(event.value))
        elif event.modality == "audio":
            self._rate = int(event.attributes.get("rate", self._rate))
            pcm = pcm16(event.value)
            self.pcm += pcm
            self._playback.add(event.time, len(pcm) // 2, self._rate)
        else:
            self.end_line()
            self._write(f"{event.modality}: {told(event.value)}")
            self.end_line()

    def _text(self, value: Any) -> str:
        """Text as it is; ids as text, or with spaces between them if there is nothing that reads them."""
        if self._reader is not None:
            return self._reader.push(value)
        self._ids += 0 if isinstance(value, str) else np.size(value)
        return value if isinstance(value, str) else "".join(f"{int(token)} " for token in np.ravel(value))

    def finish(self) -> None:
        """No more events."""
        self._write("" if self._reader is None else self._reader.finish())
        self.end_line()

    def end_line(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._mid_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:  # the reader has seen enough: no fault
            raise
        except OSError as error:
            raise RequestFailed(f"the answer cannot be written to standard output: {error.strerror or error}") from None
        self._mid_line = not text.endswith("\n")

    def times(self, run: RequestRun) -> list[str]:
        """The lines to show at the end."""
        total = time.monotonic() - self._start
        heard = self._playback.report()
        lines = [] if self._first_text is None else [f"first token  {self._first_text:8.3f} s"]
        if heard.first_s is not None:
            lines.append(f"first audio  {heard.first_s:8.3f} s")
        tokens = self._ids if self._reader is None else self._reader.ids
        causes = ", ".join(f"{loop}: {why}" for loop, why in run.outcome.causes.items())
        rate = f"   {tokens} tokens, {tokens / total:.1f} per second" if tokens else ""
        lines.append(f"total        {total:8.3f} s{rate}{f'   ({causes})' if causes else ''}")
        if heard.first_s is not None:
            mean = 1000 * heard.stalled_s / len(heard.lateness)
            lines.append(f"audio        {heard.audio_s:8.3f} s   real-time factor {total / heard.audio_s:.2f}")
            lines.append(
                f"playback     {heard.stalls:6d} stalls   chunk lateness: mean {mean:.0f} ms,"
                f" worst {1000 * heard.worst_s:.0f} ms of {len(heard.lateness)} chunks"
            )
        return lines


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose files have been read: what `Engine.submit` takes."""

    entry: str
    inputs: Mapping[str, Any]
    wants: frozenset[str]


def prepare(engine: Engine, surface: Surface | None, call: Call) -> Prepared:
    """Everything about a call that needs no started engine. Raises BadRequest."""
    entry = choose_entry(engine, surface, call.request)
    if call.output is not None:
        check_output(call.output, entry.name, [modality for modality, _ in entry.outputs])
    inputs = read_inputs(entry, gather_inputs(entry, surface, call))
    heard = call.output is not None and call.output.suffix == ".wav"
    wants = call.wants | ({"audio"} if heard else set())
    engine.checked(entry.name, inputs, call.params, wants)
    return Prepared(entry.name, inputs, wants)


async def call_engine(engine: Engine, prepared: Prepared, call: Call, status: Status, telling: Telling) -> None:
    """Run one request on a started engine and show it. Raises RuntimeFault."""
    run = await engine.submit(prepared.entry, prepared.inputs, call.params, prepared.wants, call.seed, call.deadline_s)
    kept: list[Event] = []
    try:
        async for event in run.events():
            telling.take(event)
            if call.output is not None and event.modality != "audio":
                kept.append(event)
        telling.finish()
    finally:
        run.cancel()  # nothing, if it has ended
        telling.end_line()
    for line in telling.times(run):
        status.say(line)
    if call.output is not None:
        status.say(save(call.output, kept, bytes(telling.pcm), telling.rate))
