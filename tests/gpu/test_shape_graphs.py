"""Stateless ops as CUDA graphs: equal to their methods, the encoders of robots included; one that waits for the device is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = torch.device(device_for_kernels())
from mstarc_runtime.engines.component import Checkpoint  # noqa: E402
from mstarc_runtime.engines.shape_graphs import ShapeGraphs  # noqa: E402
from mstarc_runtime.models.pi05.vision import Vision  # noqa: E402
from mstarc_runtime.models.vjepa2.components import FrameEncoder  # noqa: E402
from mstarc_runtime.worker.device_runner import GraphRunner  # noqa: E402
from tests.shipped import loader  # noqa: E402

load = loader("vjepa2_ac")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(INTERPRETED, reason="CUDA graphs need a CUDA device")]
TOWER = {
    "image_size": 28, "patch_size": 14, "tokens": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "projection_dim": 40,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_camera_encoder(dtype: str) -> None:
    vision = Vision.load(Checkpoint(), {**TOWER, "dtype": dtype}, str(DEVICE))
    forms = [((torch.float32, dims[0]),) for dims in vision.usual_shapes("encode")]
    graphs = ShapeGraphs(vision.encode, forms, DEVICE, GraphRunner(DEVICE))
    for cameras in (1, 2, 3, 4, 2):
        images = torch.rand(cameras, 3, 28, 28, device=DEVICE)
        assert torch.equal(graphs(images), vision.encode(images))


def waits(x: Tensor) -> Tensor:
    return x * x.sum().item()


def picks(x: Tensor) -> Tensor:
    return x[x > 0]


def uploads(x: Tensor) -> Tensor:
    return x + torch.tensor([1.0, 2.0], device=x.device)


@pytest.mark.parametrize("method", [waits, picks, uploads])
def test_what_waits_for_the_device_is_refused_and_spoils_nothing(method: object) -> None:
    runner = GraphRunner(DEVICE)
    form = ((torch.float32, (2,)),)
    with pytest.raises(RuntimeError):
        ShapeGraphs(method, [form], DEVICE, runner)  # type: ignore[arg-type]
    assert torch.cuda.get_sync_debug_mode() == 0
    graphs = ShapeGraphs(lambda x: x + 1, [form], DEVICE, runner)
    assert graphs(torch.ones(2, device=DEVICE)).tolist() == [2, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_frame_encoder(dtype: str) -> None:
    golden = Path(__file__).parents[1] / "goldens" / "vjepa2_ac"
    encoder = load(FrameEncoder, Checkpoint(path=golden), {"dtype": dtype}, str(DEVICE))
    (shapes,) = encoder.usual_shapes("frames")
    graphs = ShapeGraphs(encoder.frames, [((torch.float32, shapes[0]),)], DEVICE, GraphRunner(DEVICE))
    for _ in range(2):
        video = torch.randn(shapes[0], device=DEVICE)
        assert torch.equal(graphs(video), encoder.frames(video))
