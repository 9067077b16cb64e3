"""The V-JEPA 2 blocks on a GPU: what lies between the products of a block as one Triton kernel each, without copies.

All compute in f32 and give the dtype of their input unless said otherwise. They take CUDA tensors, or CPU ones under Triton's
interpreter. `through` is `StackNet.through` with the norm behind it, on the same weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from mstarc_runtime.engines.component import Run
from mstarc_runtime.models.vjepa2.nets import AcPredictorNet, Attend, Block, EncoderNet, StackNet
from mstarc_runtime.models.vjepa2.rope import frequencies

GELU_BLOCK = 1024
HEADS_AT_ONCE = 32


@triton.jit
def _add_layer_norm(
    x,
    y,
    weight,
    bias,
    out,
    eps,
    rows_out,
    rows_in,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    ADD: tl.constexpr,
    AFFINE: tl.constexpr,
):
    number = tl.program_id(0)
    source = (number // rows_out * rows_in + number % rows_out + rows_in - rows_out).to(tl.int64) * WIDTH
    at = tl.arange(0, PAD)
    there = at < WIDTH
    sums = tl.load(x + source + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        sums += tl.load(y + source + at, mask=there, other=0.0).to(tl.float32)
        tl.store(x + source + at, sums.to(x.dtype.element_ty), mask=there)
    mean = tl.sum(sums, 0) / WIDTH
    apart = tl.where(there, sums - mean, 0.0)
    normed = apart * tl.rsqrt(tl.sum(apart * apart, 0) / WIDTH + eps)
    if AFFINE:
        normed *= tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
        normed += tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + number.to(tl.int64) * WIDTH + at, normed.to(out.dtype.element_ty), mask=there)


@triton.jit
def _gelu(x, out, count, BLOCK: tl.constexpr):
    """x · Φ(x), Φ to 8e-8 (Abramowitz and Stegun, 7.1.26): of an element's two dozen operations the exact erf takes most."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    size = tl.abs(value) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * size)
    series = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    beyond = series * tl.exp(-size * size)
    grown = value * tl.where(value > 0.0, 1.0 - beyond, beyond)
    tl.store(out + at, grown.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def _turn(
    x,
    times,
    frequency,
    row_stride,
    rows_each,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    DIM: tl.constexpr,
    PAD: tl.constexpr,
    THIRD: tl.constexpr,
    GRID: tl.constexpr,
    SKIP: tl.constexpr,
    TIMED: tl.constexpr,
):
    number = tl.program_id(0)
    token = number % rows_each - SKIP
    place = tl.maximum(token, 0)  # the first rows have no place: 0 does not turn
    frame = tl.load(times + number // rows_each * rows_each).to(tl.int32) if TIMED else place // (GRID * GRID)
    within = place % (GRID * GRID)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.arange(0, PAD)
    axis = at // THIRD
    position = tl.where(axis == 0, frame, tl.where(axis == 1, within // GRID, within % GRID))
    turns = at < 3 * THIRD
    angle = position.to(tl.float32) * tl.load(frequency + at % THIRD, mask=turns, other=0.0)
    angle = tl.where(turns, angle, 0.0)
    cos = tl.cos(angle)[None, :]
    sin = (tl.sin(angle) * (at % 2 * 2 - 1))[None, :]
    there = (head < HEADS)[:, None] & (at < DIM)[None, :]
    spot = x + number.to(tl.int64) * row_stride + head[:, None] * DIM + at[None, :]
    own = tl.load(spot, mask=there, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(own, [BLOCK, PAD // 2, 2]))
    swapped = tl.reshape(tl.join(odd, even), [BLOCK, PAD])
    tl.store(spot, (own * cos + swapped * sin).to(x.dtype.element_ty), mask=there)


@triton.jit
def _frame_rows(
    embedded,
    action,
    state,
    action_weight,
    action_bias,
    state_weight,
    state_bias,
    out,
    rows_each,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    ACTION: tl.constexpr,
):
    number = tl.program_id(0)
    request, row = number // rows_each, number % rows_each
    at = tl.arange(0, PAD)
    there = at < WIDTH
    if row >= 2:
        source = (request * (rows_each - 2) + row - 2).to(tl.int64) * WIDTH
        made = tl.load(embedded + source + at, mask=there, other=0.0).to(tl.float32)
    else:
        given, weight, bias = action, action_weight, action_bias
        if row == 1:
            given, weight, bias = state, state_weight, state_bias
        made = tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
        for k in tl.static_range(ACTION):
            value = tl.load(given + request * ACTION + k).to(weight.dtype.element_ty).to(tl.float32)
            made += value * tl.load(weight + at * ACTION + k, mask=there, other=0.0).to(tl.float32)
    tl.store(out + number.to(tl.int64) * WIDTH + at, made.to(out.dtype.element_ty), mask=there)


def add_layer_norm(x: Tensor, y: Tensor | None, norm: nn.LayerNorm, rows: tuple[int, int] = (1, 1)) -> Tensor:
    """x += y in place, then its layer norm. x, y [n, width], dense. `rows` (m, of): only the last m of every `of` rows."""
    return _normed(x, y, norm.weight, norm.bias, norm.eps, x.dtype, rows)


def plain_norm(x: Tensor, eps: float) -> Tensor:
    """Layer norm without affine over the last dim of a dense tensor, in f32."""
    return _normed(x.view(-1, x.shape[-1]), None, None, None, eps, torch.float32, (1, 1)).view(x.shape)


def _normed(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    rows: tuple[int, int],
) -> Tensor:
    width = x.shape[1]
    kept = len(x) // rows[1] * rows[0]
    out = torch.empty(kept, width, dtype=dtype, device=x.device)
    pad = triton.next_power_of_2(width)
    _add_layer_norm[(kept,)](
        x,
        x if y is None else y,
        x if weight is None else weight,
        x if bias is None else bias,
        out,
        eps,
        rows[0],
        rows[1],
        WIDTH=width,
        PAD=pad,
        ADD=y is not None,
        AFFINE=weight is not None,
        num_warps=8 if pad > 1024 else 4,
    )
    return out


def gelu(x: Tensor) -> Tensor:
    """Exact GELU, x · Φ(x), of a dense tensor."""
    out = torch.empty_like(x)
    _gelu[(triton.cdiv(x.numel(), GELU_BLOCK),)](x, out, x.numel(), BLOCK=GELU_BLOCK, num_warps=4)
    return out


def turn(qkv: Tensor, grid: int, times: Tensor | None = None, rows_each: int | None = None) -> None:
    """Rotate queries and keys of qkv [n, 3, heads, head_dim] in place, as `rope.rotate` does by the tables of `rope.rotation`.

    `rows_each` rows belong together. With `times` i64 [n] they are a frame: two rows without a place, then the frame's grid · grid
    tokens, at the time of the first. Without, they are the tokens of a clip in order.
    """
    rows, _, heads, dim = qkv.shape
    third = 2 * ((dim // 3) // 2)
    _turn[(rows, triton.cdiv(2 * heads, HEADS_AT_ONCE))](
        qkv,
        qkv if times is None else times,
        frequencies(dim, qkv.device),
        qkv.stride(0),
        rows_each or rows,
        HEADS=2 * heads,
        BLOCK=HEADS_AT_ONCE,
        DIM=dim,
        PAD=triton.next_power_of_2(dim),
        THIRD=third,
        GRID=grid,
        SKIP=0 if times is None else 2,
        TIMED=times is not None,
        num_warps=4,
    )


def frame_rows(net: AcPredictorNet, z: Tensor, action: Tensor, state: Tensor) -> Tensor:
    """As `AcPredictorNet.tokens`, flat: z [B, n, D], action and state [B, A] -> rows [B · (n + 2), width]."""
    batch, tokens, _ = z.shape
    embedded = net.embed(z.to(net.embed.weight.dtype))
    width = embedded.shape[-1]
    out = torch.empty(batch * (tokens + 2), width, dtype=embedded.dtype, device=z.device)
    _frame_rows[(len(out),)](
        embedded,
        action.contiguous(),
        state.contiguous(),
        net.action.weight,
        net.action.bias,
        net.state.weight,
        net.state.bias,
        out,
        tokens + 2,
        WIDTH=width,
        PAD=triton.next_power_of_2(width),
        ACTION=action.shape[-1],
        num_warps=4,
    )
    return out


def through(net: StackNet, x: Tensor, attend: Attend, times: Tensor | None, rows_each: int, kept: int) -> Tensor:
    """Rows x [n, width] (overwritten) through the blocks and the norm behind them; of every `rows_each` rows the last `kept` come out.

    `attend` takes and gives rows [n, heads, head_dim]; for positions see `turn`.
    """
    y = None
    for layer, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        qkv = block.qkv(add_layer_norm(x, y, block.norm1)).unflatten(-1, (3, block.heads, -1))
        turn(qkv, net.grid, times, rows_each)
        mixed = attend(layer, qkv[:, 0], qkv[:, 1], qkv[:, 2])
        grown = block.fc1(add_layer_norm(x, block.proj(mixed.flatten(1)), block.norm2))
        y = block.fc2(gelu(grown))
    return add_layer_norm(x, y, net.norm, (kept, rows_each))


def features(net: EncoderNet, x: Tensor) -> Tensor:
    """Tokens x [B, N, width] of clips through the encoder -> features after the final norm, the same shape."""
    batch, tokens, width = x.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.view(batch, tokens, *part.shape[1:]).transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)

    return through(net, x.flatten(0, 1), attend, None, tokens, tokens).view(batch, tokens, width)


def step(net: AcPredictorNet, run: Run, z: Tensor, action: Tensor, state: Tensor) -> Tensor:
    """See `AcPredictorNet.step`."""
    rows = through(net, frame_rows(net, z, action, state), run.attend, run.positions, net.rows, net.rows - 2)
    predicted: Tensor = net.out(rows)
    return predicted.view(len(z), net.rows - 2, -1)
