"""`specs/bagel.walk` itself on small components: what the engine gives to many requests at once = the interpreter, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.codegen.bagel_components import picture, text
from tests.codegen.written import Asked, compiled, interpreted, same, served

SPEC = (Path(__file__).parents[2] / "specs/bagel.walk").read_text(encoding="utf-8").replace("max 32768", "max 400")
BINDING = """
config:
  vit: {patch_size: 14}
  vae: {cell: 16, latent_width: 4}
  llm:
    {vocab_size: 30, hidden_size: 8, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4,
     bos_token_id: 1, eos_token_id: 2}
components:
  vit: tests.codegen.bagel_components.Vit
  vae: tests.codegen.bagel_components.Vae
  llm: tests.codegen.bagel_components.Llm
externs:
  layout: tests.codegen.bagel_components.layout
  canvas: tests.codegen.bagel_components.canvas
  rewrap: tests.codegen.bagel_components.rewrap
"""


def image(*parts: Any, seed: int, **params: Any) -> Asked:
    params = {"steps": 6, "height": 64, "width": 64, "max_tokens": 6, **params}
    return Asked({"parts": list(parts)}, params, seed, frozenset({"image"}))


#: made from a text, edited, after a thought; of six sizes, with one to three branches a step, all three kinds of renorm
IMAGES = [
    image(text(5, 6, 7), seed=0),
    image(text(5, 6, 7), seed=1, steps=9, width=80, cfg_img=2.0),
    image(picture(48, 32), text(8, 9), seed=2),
    image(text(3), picture(32, 64), text(11, 12, 13), seed=3, renorm="global", cfg_above=0.5),
    image(text(3), picture(32, 32), seed=4, renorm="channel", renorm_min=0.5),
    image(text(9, 9), seed=5, think=True, time_shift=1.0, cfg_above=0.2, cfg_upto=0.8),
    image(picture(32, 48), text(7, 4), seed=6, think=True, steps=4),
    image(text(6), seed=7, cfg_text=1.0, height=80),
]
TEXTS = [
    Asked({"parts": [text(5, 6)]}, {"max_tokens": 5}, 8, frozenset({"text"})),
    Asked({"parts": [picture(32, 32), text(5)]}, {"max_tokens": 4, "temperature": 0.7}, 9, frozenset({"text"})),
]


async def test_images_and_texts_at_once_are_what_they_are_alone(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, SPEC, BINDING)
    asked = [*IMAGES, *TEXTS]
    due = [interpreted(program, linked, one) for one in asked]
    assert len({value.shape for got in due for value in got.events.get("image", [])}) >= 6
    for shuffle in (None, 4):
        for got, want in zip(await served(linked, asked, shuffle), due, strict=True):
            same(got, want, 1e-4)
