"""`mstarc graph` in a real browser, where one is installed: no text leaves its box, and the picture moves and scales."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
SPECS = ["specs/ask.walk", "tests/passes/models/bagel.walk", "tests/passes/models/qwen3_omni.walk"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

#: Measures the page, acts on it as a hand would, and leaves what was seen as JSON in the title.
_LOOK = """
<script>
const seen = { errors: window.seenErrors, views: {}, outside: [] };
const cards = [...document.querySelectorAll("rect.card, rect.label")].map(r => r.getBBox());
for (const text of document.querySelectorAll("svg text")) {
  const b = text.getBBox();
  if (!cards.some(c => c.x <= b.x && b.x + b.width <= c.x + c.width && c.y <= b.y && b.y + b.height <= c.y + c.height))
    seen.outside.push(text.textContent);
}
const note = name => seen.views[name] = svg.getAttribute("viewBox").split(" ").map(Number);
const pointer = (type, x, y) => svg.dispatchEvent(
  new PointerEvent(type, { pointerId: 1, clientX: x, clientY: y, bubbles: true }));
svg.setPointerCapture = () => {};                     // the browser refuses it to a made-up pointer
note("start");
frame.dispatchEvent(new WheelEvent("wheel", { deltaY: -500, clientX: 400, clientY: 400, cancelable: true }));
note("wheel");
seen.under = at({ clientX: 400, clientY: 400 });
pointer("pointerdown", 300, 300); pointer("pointermove", 350, 320); pointer("pointerup", 350, 320);
note("drag");
pointer("pointermove", 500, 500);
note("released");
document.getElementById("one").click();
note("one");
dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
note("fit");
seen.frame = [frame.clientWidth, frame.clientHeight];
document.title = JSON.stringify(seen);
</script>
"""


@pytest.mark.parametrize("spec", SPECS)
def test_a_page_in_a_browser(spec: str, mstarc: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    mstarc("graph", spec, "-o", page)
    seen = looked_at(page)
    assert seen["errors"] == []
    assert seen["outside"] == []
    views = seen["views"]
    start, wheel, drag = views["start"], views["wheel"], views["drag"]
    factor = start[2] / wheel[2]
    assert factor == pytest.approx(2.718, abs=0.01), "the wheel makes it larger"
    px, py = seen["under"]
    for at, (pixel, size) in enumerate(zip((px, py), seen["frame"], strict=True)):
        points = [view[at] + pixel * view[at + 2] / size for view in (start, wheel)]
        assert points[0] == pytest.approx(points[1], abs=0.01), "what is under the pointer stays there"
    scale = seen["frame"][0] / wheel[2]
    assert [wheel[0] - drag[0], wheel[1] - drag[1]] == pytest.approx([50 / scale, 20 / scale], abs=0.01)
    assert views["released"] == drag, "it moves only while it is held"
    assert views["one"][2:] == seen["frame"], "one to one"
    assert views["fit"] == start
    width, height = shown(page)
    assert start[0] <= 0 and start[1] <= 0 and start[0] + start[2] >= width and start[1] + start[3] >= height, (
        "all is in view"
    )


def shown(page: Path) -> tuple[float, float]:
    """The size of the picture as written."""
    found = re.search(r'<svg [^>]*width="(\d+)" height="(\d+)"', page.read_text())
    assert found is not None
    return float(found[1]), float(found[2])


def looked_at(page: Path) -> dict[str, Any]:
    """What `_LOOK` saw."""
    text = page.read_text().replace("</body>", _LOOK + "</body>")
    catch = "<script>window.seenErrors = []; onerror = message => { window.seenErrors.push(message); };</script>"
    probe = page.with_name("probe.html")
    probe.write_text(text.replace("<head>", "<head>" + catch))
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.with_name('profile')}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", profile, "--dump-dom"]
    ran = subprocess.run([CHROMIUM, *flags, probe.as_uri()], capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", ran.stdout, re.S)
    assert title is not None and title[1].startswith("{"), ran.stderr
    found: dict[str, Any] = json.loads(html.unescape(title[1]))
    return found
