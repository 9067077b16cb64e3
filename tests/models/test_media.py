"""Images and videos of requests: arrays, lists, .npy files, compressed files where a decoder is installed, and what is refused."""

from __future__ import annotations

import importlib.util
import io
import struct
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.media import read_image, read_video
from mstarc_runtime.program import Part

needs_pillow = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="Pillow is not installed")
needs_av = pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="PyAV is not installed")
IMAGE = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
VIDEO = np.random.default_rng(1).integers(0, 256, (5, 6, 9, 3), np.uint8)


def headed(head: str) -> bytes:
    """A .npy file with this head."""
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + b"data"


def npy(array: Any) -> bytes:
    stored = io.BytesIO()
    np.save(stored, array)
    return stored.getvalue()


def every(count: int) -> Sequence[int]:
    return range(count)


@pytest.mark.parametrize("value", [IMAGE, npy(IMAGE), bytearray(npy(IMAGE)), Part("image", data=npy(IMAGE))])
def test_an_image_comes_as_it_is(value: Any) -> None:
    assert np.array_equal(read_image(value, "x"), IMAGE)


@needs_pillow
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_pictures(kind: str) -> None:
    from PIL import Image

    smooth = np.repeat(np.arange(0, 240, 4, dtype=np.uint8), 180).reshape(60, 60, 3)
    stored = io.BytesIO()
    Image.fromarray(smooth).save(stored, kind, lossless=True, quality=95)
    found = read_image(stored.getvalue(), "x")
    assert found.shape == (60, 60, 3) and np.abs(found.astype(int) - smooth).max() <= (0 if kind != "JPEG" else 8)
    if kind != "WEBP":  # its decoder fills in what is missing
        with pytest.raises(BadRequest, match=f"`x` is broken {kind}"):
            read_image(stored.getvalue()[:60], "x")


@needs_pillow
def test_a_picture_that_claims_to_be_huge_is_not_decoded() -> None:
    """The header alone: 9000 x 9000 pixels."""
    size = b"IHDR" + struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + size + struct.pack(">I", zlib.crc32(size))
    with pytest.raises(BadRequest, match="`x` is 9000 x 9000 pixels; sides are 1 to 8192"):
        read_image(head + struct.pack(">I", 0) + b"IDAT", "x")


def test_without_a_decoder_the_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "av", None)
    for read, data, words in (
        (lambda data: read_image(data, "x"), b"\xff\xd8\xff\xe0", "JPEG, which this server cannot decode"),
        (lambda data: read_video(data, "x", every), b"\x00\x00\x00 ftypisom", "MP4, which this server cannot decode"),
    ):
        with pytest.raises(BadRequest, match=words) as caught:
            read(data)
        assert caught.value.field == "x" and caught.value.status == 415


@pytest.mark.parametrize("value", [VIDEO, npy(VIDEO), list(VIDEO), [npy(frame) for frame in VIDEO]])
def test_chosen_frames(value: Any) -> None:
    asked: list[int] = []

    def choose(count: int) -> list[int]:
        asked.append(count)
        return [0, 2, 4]

    assert np.array_equal(read_video(value, "x", choose), VIDEO[[0, 2, 4]]) and asked == [5]


def test_floats_stay_as_they_are() -> None:
    clip = np.zeros((2, 3, 4, 4), np.float32)
    assert read_video(clip, "x", every).dtype == np.float32


def film(frames: Any, name: str, codec: str) -> bytes:
    import av

    stored = io.BytesIO()
    with av.open(stored, "w", format=name) as made:
        stream = made.add_stream(codec, rate=4)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            made.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        made.mux(stream.encode())
    return stored.getvalue()


@needs_av
@pytest.mark.parametrize(("name", "codec"), [("mp4", "mpeg4"), ("avi", "mpeg4"), ("matroska", "mpeg4")])
def test_films(name: str, codec: str) -> None:
    shades = np.stack([np.full((32, 48, 3), 20 * k, np.uint8) for k in range(8)])
    data = film(shades, name, codec)
    found = read_video(data, "x", lambda count: [0, count // 2, count - 1])
    assert found.shape == (3, 32, 48, 3) and np.abs(found.astype(int) - shades[[0, 4, 7]]).max() <= 6
    with pytest.raises(BadRequest) as caught:
        read_video(data[: len(data) // 2], "x", every)
    assert caught.value.field == "x"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "none of a .npy file, MP4"),
        (b"#EXTM3U\nfile:///etc/passwd", "none of a .npy file, MP4"),
        (b"ffconcat version 1.0\nfile /etc/passwd", "none of a .npy file"),
        (b"\x93NUMPY\x01\x00", "a broken .npy file"),
        (headed("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3,\n"), "a broken .npy file"),
        (headed("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000,), }\n"), "a broken .npy file"),
        (
            headed("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000000000000000000,), }\n"),
            "a broken .npy file",
        ),
        ([], "must be a video"),
        ("film.mp4", "must be a video"),
        ([IMAGE, IMAGE[:3]], "not all of one size"),
        ([IMAGE, 7], r"`x\[1\]` is a int, not an image"),
        (IMAGE, "has 3 dims; a video has 4"),
        (np.zeros((2, 4, 4, 4), np.uint8), r"must be u8 \[frames, height, width, 3\]"),
        (np.zeros((2, 4, 4, 3), np.float64), "must be u8 frames or normalised f32 ones"),
        (np.zeros((0, 4, 4, 3), np.uint8), "has 0 frames"),
        (np.zeros((5000, 1, 1, 3), np.uint8), "has 5000 frames; 1 to 4096"),
        (np.zeros((1, 1, 9000, 3), np.uint8), "is 9000 x 1 pixels"),
    ],
)
def test_wrong_videos_are_refused(value: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        read_video(value, "x", every)
    assert str(caught.value.field).startswith("x")
