"""A client of the language server: JSON-RPC over the pipes of a process, with a deadline on whatever it waits for."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

DEADLINE = 60.0  # seconds; a machine may be busy
ROOT = Path(__file__).resolve().parents[2]


class Client:
    """One server process. `diagnostics`: what was published last, by file name."""

    def __init__(self, encodings: list[str] | None = None) -> None:
        command = [sys.executable, "-m", "mstarc", "lsp"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        self._ids = itertools.count(1)
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._replies: dict[int, dict[str, Any]] = {}
        self.published: list[tuple[str, list[dict[str, Any]]]] = []
        self.notes: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()
        offered = {"general": {"positionEncodings": encodings}} if encodings else {}
        self.capabilities = self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": offered})[
            "capabilities"
        ]
        self.tell("initialized", {})

    def _read(self) -> None:
        out = self.process.stdout
        assert out is not None
        while line := out.readline():
            size = int(line.split(b":")[1])
            while out.readline().strip():
                pass
            self._inbox.put(json.loads(out.read(size)))
        self._inbox.put(None)

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def _receive(self) -> None:
        message = self._inbox.get(timeout=DEADLINE)
        assert message is not None, "the server has gone"
        if "id" in message and "method" not in message:
            self._replies[message["id"]] = message
        elif message.get("method") == "textDocument/publishDiagnostics":
            self.published.append((message["params"]["uri"].rsplit("/", 1)[1], message["params"]["diagnostics"]))
        else:
            self.notes.append(message)

    def ask(self, method: str, params: Any) -> Any:
        """The result of a request. Raises AssertionError for an error."""
        number = next(self._ids)
        self._write({"id": number, "method": method, "params": params})
        while number not in self._replies:
            self._receive()
        reply = self._replies.pop(number)
        assert "error" not in reply, reply
        return reply["result"]

    def tell(self, method: str, params: Any) -> None:
        self._write({"method": method, "params": params})

    def diagnostics(self, file: str) -> list[dict[str, Any]]:
        """What is published next about a file."""
        while True:
            for number, (name, found) in enumerate(self.published):
                if name == file:
                    del self.published[: number + 1]
                    return found
            self._receive()

    def open(self, path: Path, text: str | None = None) -> str:
        """Open a file, with its text on disk if none is given; its URI."""
        uri = path.as_uri()
        document = {"uri": uri, "languageId": "walk", "version": 1, "text": path.read_text() if text is None else text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return uri

    def change(self, uri: str, text: str, version: int = 2) -> None:
        """Replace the whole text."""
        self.tell(
            "textDocument/didChange",
            {"textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]},
        )

    def at(self, method: str, uri: str, text: str, place: str) -> Any:
        """A request at the mark `|` of a part of the text."""
        assert text.count(place.replace("|", "")) >= 1, place
        offset = text.index(place.replace("|", "")) + place.index("|")
        line = text[:offset].count("\n")
        column = len(text[:offset].rpartition("\n")[2].encode("utf-16-le")) // 2
        return self.ask(method, {"textDocument": {"uri": uri}, "position": {"line": line, "character": column}})

    def close(self) -> int:
        """Shut the server down; its exit status."""
        self.ask("shutdown", None)
        self.tell("exit", None)
        return self.process.wait(timeout=DEADLINE)
