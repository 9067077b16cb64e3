"""Philox4x32-10 against the published vectors, and what is built on it: uniforms, normals, keys."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mstarc_runtime.sampling.philox import DrawKey, KeyedGenerator, normals, philox4x32, site_hash, uniforms

# Known-answer vectors that the authors publish with their implementation: counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint64)


@pytest.mark.parametrize("counter, key, result", VECTORS)
def test_known_answers(counter: str, key: str, result: str) -> None:
    assert philox4x32(words(counter), words(key)).tolist() == words(result).tolist()


def test_a_batch_equals_its_rows() -> None:
    counters, keys = (np.stack([words(vector[n]) for vector in VECTORS]) for n in (0, 1))
    assert philox4x32(counters, keys).tolist() == [words(vector[2]).tolist() for vector in VECTORS]


def test_every_part_of_a_key_matters_and_the_batch_does_not() -> None:
    keys = [
        DrawKey(1, "a/b", 0),
        DrawKey(2, "a/b", 0),
        DrawKey(1, "a/c", 0),
        DrawKey(1, "a/b", 1),
        DrawKey(1 + (1 << 40), "a/b", 0),
    ]
    together = uniforms(keys)
    assert len(set(together.tolist())) == len(keys)
    assert [uniforms([key])[0] for key in keys] == together.tolist()
    assert uniforms([DrawKey(-1, "a/b", 0)])[0] == uniforms([DrawKey((1 << 64) - 1, "a/b", 0)])[0]


def test_the_site_hash_is_fixed() -> None:
    assert site_hash("answer/reply") == 0xD6340599EDDC9813
    assert 0 <= site_hash("x") < 1 << 64


def test_uniforms_are_uniform() -> None:
    drawn = uniforms([DrawKey(7, "w/s", j) for j in range(20_000)])
    assert drawn.min() >= 0.0 and drawn.max() < 1.0
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees, 0.001


def test_normals_are_normal() -> None:
    drawn = normals((50_000,), DrawKey(3, "w/z", 0)).astype(np.float64)
    assert abs(drawn.mean()) < 4 / math.sqrt(len(drawn))
    assert abs(drawn.var() - 1) < 4 * math.sqrt(2 / len(drawn))
    assert abs((drawn**4).mean() - 3) < 4 * math.sqrt(96 / len(drawn))
    assert abs((drawn > 1.96).mean() - 0.025) < 0.003
    assert abs((drawn[::2] * drawn[1::2]).mean()) < 0.03  # the two members of a pair


def test_normals_have_the_shape_and_a_prefix_property() -> None:
    key = DrawKey(3, "w/z", 2)
    whole = normals((3, 5), key)
    assert whole.shape == (3, 5) and whole.dtype == np.float32
    assert normals((7,), key).tolist() == whole.reshape(-1)[:7].tolist()
    assert normals((0, 4), key).shape == (0, 4) and normals((), key).shape == ()


def test_a_generator_goes_on_where_it_ended() -> None:
    key = DrawKey(3, "w/n.decode", 0)
    generator = KeyedGenerator(key)
    first, second = generator.normal(8), generator.normal(2, 2)
    assert np.concatenate([first, second.reshape(-1)]).tolist() == normals((12,), key).tolist()
