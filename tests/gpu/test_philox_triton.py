"""Normals made by the kernel are the host's."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels import device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.sampling import philox  # noqa: E402
from mstarc_runtime.sampling.philox_triton import normals, uniforms  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(1,), (4,), (3, 7), (1030,), (2, 4096)])
@pytest.mark.parametrize("skip", [0, 5])
def test_normals_are_those_of_the_host(shape: tuple[int, ...], skip: int) -> None:
    seeds, j = [5, 2**63 + 1, 2**64 - 1], [0, 3, 2**33 + 2]
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds], device=DEVICE)
    found = normals(shape, signed, philox.site_hash("w/x"), torch.tensor(j, device=DEVICE), skip)
    wanted = [philox.normals(shape, philox.DrawKey(seed, "w/x", k), skip) for seed, k in zip(seeds, j, strict=True)]
    torch.testing.assert_close(found.cpu(), torch.stack([torch.from_numpy(w) for w in wanted]), atol=1e-6, rtol=1e-6)


def test_uniforms_are_those_of_the_host() -> None:
    seeds, j = [5, 2**63 + 1, 2**64 - 1] * 7, list(range(0, 2**34, 2**34 // 20))[:21]
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds], device=DEVICE)
    found = uniforms(signed, philox.site_hash("w/x"), torch.tensor(j, device=DEVICE))
    wanted = philox.uniforms([philox.DrawKey(seed, "w/x", k) for seed, k in zip(seeds, j, strict=True)])
    assert found.tolist() == wanted.tolist()
