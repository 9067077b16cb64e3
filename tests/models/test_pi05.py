"""pi0.5 on the reference weights (their results: tests/verify): stacked requests, batches on the paged engine, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines.component import Checkpoint, Run
from mstarc_runtime.engines.transformer import Call, EngineError, OpSpec, TransformerEngine
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.pi05.flow import VELOCITY, flow, geometry, look, velocities
from mstarc_runtime.models.pi05.policy import Policy
from mstarc_runtime.models.pi05.vision import Vision
from tests.models.vjepa2_cases import Cases, close
from tests.shipped import loader

load = loader("pi05")

GOLDEN = Cases("pi05")
FLOWS = [case for case in GOLDEN.named("actions") if case != "actions_batch2"]
CHECKPOINT = Checkpoint(path=GOLDEN.folder)
HIDDEN = OpSpec("llm.hidden", params=("packed", "packed"), attend="full", positions="seq")
Snapshot = tuple[int, int, list[int], list[int], Tensor]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def vision() -> Vision:
    return load(Vision, CHECKPOINT, {}, "cpu")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load(Policy, CHECKPOINT, {}, "cpu")


def engine_for(policy: Policy, dtype: torch.dtype = torch.float32) -> TransformerEngine:
    return TransformerEngine(PagedPool.from_bytes(geometry(policy.config), 4 << 20, dtype=dtype, poison=True))


def pictures(case: str, row: int = 0) -> Tensor:
    """The images of the cameras that are there [C, 3, 56, 56]; those of masked slots are left out."""
    mask = GOLDEN.tensor(case, "image_mask")[row].tolist()
    return torch.cat([GOLDEN.tensor(case, f"image_{slot}")[row : row + 1] for slot, there in enumerate(mask) if there])


def prefix(vision: Vision, case: str, row: int = 0) -> tuple[Tensor, Tensor]:
    """Camera rows and prompt ids of a case, without masked cameras and padding."""
    ids = GOLDEN.tensor(case, "tokens")[row][GOLDEN.tensor(case, "token_mask")[row]]
    return vision.encode(pictures(case, row)), ids


def valid(case: str, name: str) -> Tensor:
    """An output over the padded prefix, dim -2, at its valid places."""
    return GOLDEN.tensor(case, name)[0][..., GOLDEN.tensor(case, "prefix_mask")[0], :]


def entries(context: Context, layer: int = -1) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer [kv_heads, length, head_dim]."""
    data = context.pool.data[layer][:, context.slots(0, context.length)]
    keys, values = data.chunk(2)
    return keys, values


def snapshot(context: Context) -> Snapshot:
    """All that a context is: length, counter, pages and their counts, entries of every layer."""
    pool = context.pool
    held = torch.stack([pool.page(page) for page in context.pages]).clone()
    return context.length, context.position, list(context.pages), [pool.refs(page) for page in context.pages], held


def same(one: Snapshot, other: Snapshot) -> bool:
    return one[:4] == other[:4] and torch.equal(one[4], other[4])


# --- parts


def test_vision_of_several_requests(vision: Vision) -> None:
    """`batch stack`: rows camera by camera, as of each request alone; cameras do not see each other."""
    images = torch.stack([pictures("actions_3cam"), pictures("actions_3cam").flip(0)])
    rows = vision.encode(images)
    assert rows.shape == (2, 48, 64)
    for k in range(2):
        close(rows[k], vision.encode(images[k]), 1e-5)
    close(vision.encode(images[0, 1:2]), rows[0, 16:32], 1e-5)


@pytest.mark.parametrize("shape", [(3, 56, 56), (1, 3, 56, 55), (1, 1, 56, 56)])
def test_vision_refuses_other_shapes(vision: Vision, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadRequest, match=r"camera images are \['C', 3, 56, 56\], got"):
        vision.encode(torch.zeros(shape))


# --- prefix and flow on the paged engine


def test_requests_of_a_batch_have_their_own_times(vision: Vision, policy: Policy) -> None:
    """Continuous batching: one request joins while another is half way, over the same prefix or over another."""
    engine = engine_for(policy)
    first, second = look(engine, policy, [prefix(vision, case) for case in ("actions_3cam", "actions_1cam")])
    cases, times = ("actions_3cam", "actions_3cam", "actions_1cam"), (1.0, 0.5, 0.5)
    noise = torch.cat([GOLDEN.tensor(case, "noise") for case in cases])
    got = velocities(engine, policy, [first, first, second], noise, times)
    names = ("velocity_t1", "velocity_t05", "velocity_t05")
    wanted = torch.cat([GOLDEN.tensor(case, name) for case, name in zip(cases, names, strict=True)])
    close(got, wanted)


def test_a_request_without_cameras_in_a_batch(vision: Vision, policy: Policy) -> None:
    """None, one and three cameras; prompts shorter than a camera's rows."""
    (one, _), (three, ids) = prefix(vision, "actions_1cam"), prefix(vision, "actions_3cam")
    prefixes = [(three, ids), (three[:0], ids[:5]), (one, ids[:15])]
    contexts = look(engine := engine_for(policy), policy, prefixes)
    for each, context in zip(prefixes, contexts, strict=True):
        (alone,) = look(engine, policy, [each])
        for mine, theirs in zip(entries(context), entries(alone), strict=True):
            close(mine, theirs, 1e-5)


def test_the_expert_reads_the_prefix(vision: Vision, policy: Policy) -> None:
    """The cached entries matter, all layers of them: what the flow gives changes with each."""
    case = "actions_1cam"
    engine, noise = engine_for(policy), GOLDEN.tensor(case, "noise")
    (context,) = look(engine, policy, [prefix(vision, case)])
    wanted = GOLDEN.tensor(case, "velocity_t1")
    for layer in range(policy.config.layers):
        kept = engine.pool.data[layer].clone()
        engine.pool.data[layer] *= 0.5
        changed = velocities(engine, policy, [context], noise, [1.0])
        assert (changed - wanted).abs().max() > 1e-3 * wanted.abs().max()
        engine.pool.data[layer] = kept
    close(velocities(engine, policy, [context], noise, [1.0]), wanted)


def test_velocity_may_not_write(vision: Vision, policy: Policy) -> None:
    """The op is frozen by its spec: the engine refuses a component that writes in it."""
    engine = engine_for(policy)
    (context,) = look(engine, policy, [prefix(vision, "actions_1cam")])
    before = snapshot(context)

    def writing(run: Run, x: Tensor, t: Tensor) -> Tensor:
        rows = torch.zeros(10, 1, 16)
        run.write(0, rows, rows)
        return x

    with pytest.raises(EngineError, match="is frozen but its component writes"):
        engine.call(writing, VELOCITY, [Call((torch.zeros(10, 8), torch.tensor(1.0)), (context,), 10)])
    assert same(before, snapshot(context))


@pytest.mark.parametrize(("key", "value"), [("text_scale", 64.0), ("image_scale", 8.0)])
def test_scales_are_parameters_of_the_node(vision: Vision, policy: Policy, key: str, value: float) -> None:
    other = load(Policy, CHECKPOINT, {key: value}, "cpu")
    seen, ids = prefix(vision, "actions_1cam")
    rows, scaled = policy.prefix(seen, ids), other.prefix(seen, ids)
    text, image = (value / 8, 1.0) if key == "text_scale" else (1.0, value)
    close(scaled, torch.cat([rows[:16] * image, rows[16:] * text]), 1e-6)


def test_half_precision_stays_near(vision: Vision) -> None:
    """bf16 matrices and cache; norms, time and action projections stay f32 and so does the result."""
    half = load(Policy, CHECKPOINT, {"dtype": "bfloat16"}, "cpu")
    language, expert = half.net.language, half.net.expert
    kept = {
        language.norm.dtype,
        expert.modulation.weight.dtype,
        expert.action_out.weight.dtype,
        expert.time_in.bias.dtype,
    }
    assert kept == {torch.float32} and language.embed.dtype == expert.dtype == torch.bfloat16
    engine = engine_for(half, torch.bfloat16)
    case = "actions_3cam"
    contexts = look(engine, half, [prefix(vision, case)])
    actions, _ = flow(engine, half, contexts, GOLDEN.tensor(case, "noise"), 10)
    close(actions, GOLDEN.tensor(case, "actions"), 0.05)
    tower = load(Vision, CHECKPOINT, {"dtype": "bfloat16"}, "cpu")
    seen = tower.encode(GOLDEN.tensor("vision", "image"))
    assert tower.net.patch.weight.dtype == tower.net.position.dtype == torch.float32 and seen.dtype == torch.bfloat16
    close(seen.float(), GOLDEN.tensor("vision", "img_emb")[0], 0.05)
