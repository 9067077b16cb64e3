"""Images and videos of a request -> arrays of pixels. Whatever is wrong with them is a `BadRequest` that names the field. No torch.

An input is an array, the bytes of a file, or a part whose `data` is one of these. A .npy file needs nothing; PNG, JPEG and WebP need
Pillow, and MP4, WebM and AVI need PyAV: both are optional, and a client is told which one the server lacks. Containers are told apart
by their first bytes, so that the decoders' many rare parsers, some of which open further files, stay out of reach.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.errors import BadRequest

MAX_SIDE = 8192  # pixels of an image or a frame
MAX_FRAMES = 4096  # of a video
MAX_BYTES = 2**30  # of the frames of a video that are used
_NPY = b"\x93NUMPY"


# ------------------------------------------------------------------------------------------------------------------ images


def read_image(value: Any, field: str) -> NDArray[np.uint8]:
    """An image as u8 [H, W, 3] (RGB). Raises BadRequest with `field`, also for an image that is empty or larger than MAX_SIDE."""
    data = content(value)
    if isinstance(data, bytes):
        data = _from_npy(data, field) if data.startswith(_NPY) else _from_picture(data, field)
    if not isinstance(data, np.ndarray):
        raise BadRequest(f"`{field}` is a {type(data).__name__}, not an image", field)
    if data.dtype != np.uint8 or data.ndim != 3 or data.shape[2] != 3:
        raise BadRequest(f"`{field}` must be u8 [height, width, 3] (RGB), got {data.dtype} {list(data.shape)}", field)
    _check_sides(data.shape[1], data.shape[0], field)
    return data


def content(value: Any) -> Any:
    """What an input holds: an array as it is, bytes as `bytes`; the `data` of a part."""
    data = value if isinstance(value, np.ndarray) else getattr(value, "data", value)
    return bytes(data) if isinstance(data, bytearray | memoryview) else data


def _check_sides(width: int, height: int, field: str) -> None:
    if not 1 <= min(width, height) <= max(width, height) <= MAX_SIDE:
        raise BadRequest(f"`{field}` is {width} x {height} pixels; sides are 1 to {MAX_SIDE}", field)


def _from_npy(data: bytes, field: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # whatever numpy makes of a broken head: MemoryError, TokenError, OverflowError
        raise BadRequest(f"`{field}` is a broken .npy file: {error}", field) from error
    return found


def _from_picture(data: bytes, field: str) -> NDArray[np.uint8]:
    kind = next((kind for kind, known in _PICTURES.items() if known(data)), None)
    if kind is None:
        raise BadRequest(f"`{field}` is none of a .npy file, {', '.join(_PICTURES)}", field)
    try:
        from PIL import Image
    except ImportError:
        raise BadRequest(
            f"`{field}` is {kind}, which this server cannot decode (it lacks Pillow)", field, 415
        ) from None
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            _check_sides(image.width, image.height, field)  # known before a pixel is decoded
            return np.asarray(image.convert("RGB"))
    except BadRequest:
        raise
    except Exception as error:  # the decoders raise what they like
        raise BadRequest(f"`{field}` is broken {kind}: {error}", field) from None


_PICTURES: dict[str, Callable[[bytes], bool]] = {
    "PNG": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "JPEG": lambda data: data.startswith(b"\xff\xd8\xff"),
    "WEBP": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP",
}

# ------------------------------------------------------------------------------------------------------------------ videos


def read_video(value: Any, field: str, choose: Callable[[int], Sequence[int]]) -> NDArray[Any]:
    """The chosen frames of a video: u8 [T, H, W, 3] (RGB), or an f32 array as the client gave it.

    A video is an array, a list of images of one size, or a file. `choose` takes the number of frames and gives the ascending
    indices of those to keep; only these are held in memory. Raises BadRequest with `field`.
    """
    data = content(value)
    if isinstance(data, bytes):
        if not data.startswith(_NPY):
            return _from_film(data, field, choose)
        data = _from_npy(data, field)
    if isinstance(data, list | tuple) and data:
        _check_count(len(data), field)
        frames = [read_image(data[index], f"{field}[{index}]") for index in choose(len(data))]
        if len({frame.shape for frame in frames}) > 1:
            raise BadRequest(f"the images of `{field}` are not all of one size", field)
        return np.stack(frames)
    if not isinstance(data, np.ndarray):
        raise BadRequest(f"`{field}` must be a video: an array, a list of images, or a file", field)
    if data.ndim != 4:
        raise BadRequest(f"`{field}` has {data.ndim} dims; a video has 4", field)
    _check_count(len(data), field)
    kept = data[list(choose(len(data)))]
    if kept.dtype == np.uint8:
        if kept.shape[3] != 3:
            raise BadRequest(f"`{field}` must be u8 [frames, height, width, 3] (RGB), got {list(data.shape)}", field)
        _check_sides(kept.shape[2], kept.shape[1], field)
    elif kept.dtype != np.float32:
        raise BadRequest(f"`{field}` must be u8 frames or normalised f32 ones, not {data.dtype}", field)
    return kept


def _check_count(frames: int, field: str) -> None:
    if not 1 <= frames <= MAX_FRAMES:
        raise BadRequest(f"`{field}` has {frames} frames; 1 to {MAX_FRAMES} are accepted", field)


_FILMS: dict[str, tuple[str, Callable[[bytes], bool]]] = {  # name -> demuxer and how such a file begins
    "MP4": ("mov", lambda data: data[4:8] == b"ftyp"),
    "WebM": ("matroska", lambda data: data.startswith(b"\x1a\x45\xdf\xa3")),
    "AVI": ("avi", lambda data: data[:4] == b"RIFF" and data[8:12] == b"AVI "),
}


def _from_film(data: bytes, field: str, choose: Callable[[int], Sequence[int]]) -> NDArray[np.uint8]:
    kind = next((kind for kind, (_, known) in _FILMS.items() if known(data)), None)
    if kind is None:
        raise BadRequest(f"`{field}` is none of a .npy file, {', '.join(_FILMS)}", field)
    try:
        import av
    except ImportError:
        why = f"`{field}` is {kind}, which this server cannot decode (it lacks PyAV): send its frames as an array"
        raise BadRequest(why, field, 415) from None
    try:
        count = _count_frames(av, data, _FILMS[kind][0])
        _check_count(count, field)
        return _decoded(av, data, _FILMS[kind][0], field, frozenset(choose(count)), count)
    except BadRequest:
        raise
    except Exception as error:  # the decoders raise what they like
        raise BadRequest(f"`{field}` is broken {kind}: {error}", field) from None


def _count_frames(av: Any, data: bytes, demuxer: str) -> int:
    """Packets of the video stream that hold something: one a frame."""
    with av.open(io.BytesIO(data), format=demuxer) as film:
        if not film.streams.video:
            raise ValueError("it has no video stream")
        return sum(1 for packet in film.demux(film.streams.video[0]) if packet.size)


def _decoded(av: Any, data: bytes, demuxer: str, field: str, wanted: frozenset[int], count: int) -> NDArray[np.uint8]:
    frames: list[NDArray[np.uint8]] = []
    seen = 0
    with av.open(io.BytesIO(data), format=demuxer) as film:
        for index, frame in enumerate(film.decode(film.streams.video[0])):
            seen += 1
            if index not in wanted:
                continue
            _check_sides(frame.width, frame.height, field)
            if len(wanted) * frame.width * frame.height * 3 > MAX_BYTES:
                raise BadRequest(
                    f"`{field}`: {len(wanted)} frames of {frame.width} x {frame.height} are too many", field
                )
            frames.append(frame.to_ndarray(format="rgb24"))
    if len(frames) < len(wanted):
        raise BadRequest(f"`{field}` ends early: {count} frames were announced, {seen} could be decoded", field)
    if len({frame.shape for frame in frames}) > 1:
        raise BadRequest(f"the frames of `{field}` are not all of one size", field)
    return np.stack(frames)
