"""Verification of pi0.5: vision, text rows, time condition, prefix and flow on the paged cache, prompts and images. Cases are known
by the outputs that they list."""

from __future__ import annotations

import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.engines.component import Run
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.pi05.flow import flow, geometry, look, velocities
from mstarc_runtime.models.pi05.images import pixels
from mstarc_runtime.models.pi05.policy import Policy
from mstarc_runtime.models.pi05.robot import normalise, prompt_text, state_bins, unnormalise
from mstarc_runtime.models.pi05.vision import Vision
from mstarc_runtime.verify.golden import Case, Golden, UnusableFolder
from mstarc_runtime.verify.report import Report
from mstarc_runtime.verify.setup import Item, Setup, items_of

NEAR, ACTIONS, PIXEL = 1e-4, 3e-4, 1e-5  # PIXEL is absolute
HIDDEN = OpSpec("llm.hidden", params=("packed",), attend="full", positions="seq")


def plan(golden: Golden, setup: Setup) -> list[Item]:
    """The cases of a folder."""
    parts = _Parts(golden, setup)
    runs = {
        "img_emb": parts.vision_rows,
        "emb": parts.text_rows,
        "cond": parts.condition,
        "actions": parts.actions,
        "normalized_state": parts.prompt,
        "pixels_0": parts.image,
    }
    return items_of(golden, runs)


def entries(context: Context, layer: int = -1) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer [kv_heads, length, head_dim]."""
    keys, values = context.pool.data[layer][:, context.slots(0, context.length)].chunk(2)
    return keys, values


class _Parts:
    """The components, and what each kind of case compares."""

    def __init__(self, golden: Golden, setup: Setup) -> None:
        self.setup = setup
        self.vision = Vision.load(setup.checkpoint(golden.folder, "vit"), setup.node, setup.device)
        self.policy = Policy.load(setup.checkpoint(golden.folder, "llm"), setup.node, setup.device)

    # -------------------------------------------------------------------------------------------------------------- parts

    def vision_rows(self, case: Case, report: Report) -> None:
        """The tower and the connector, of each image alone."""
        image = case.given("image")
        if "vision_hidden" in case.outputs:
            report.close(case.name, "vision_hidden", self.vision.net.hidden(image), case.wanted("vision_hidden"), NEAR)
        rows, wanted = self.vision.encode(image), case.wanted("img_emb")
        report.close(case.name, "img_emb", rows.reshape(wanted.shape), wanted, NEAR)

    def text_rows(self, case: Case, report: Report) -> None:
        """Scaled embeddings."""
        report.close(case.name, "emb", self.policy.embed(case.given("tokens")), case.wanted("emb"), NEAR)

    def condition(self, case: Case, report: Report) -> None:
        """The condition of the expert's norms from times."""
        waves, condition = self.policy.conditions(case.given("t"))
        if "sincos" in case.outputs:
            report.close(case.name, "sincos", waves, case.wanted("sincos"), NEAR)
        report.close(case.name, "cond", condition, case.wanted("cond"), NEAR)

    # --------------------------------------------------------------------------------------------------- prefix and flow

    def actions(self, case: Case, report: Report) -> None:
        """Requests of a batch are read in one call and flow in one call a step; then each alone. The prefix must not change."""
        noise, steps = case.given("noise"), int(case.params["num_steps"])
        prefixes = [self._prefix(case, row) for row in range(len(noise))]
        self._masks(case, report, prefixes)
        engine = self.setup.engine(geometry(self.policy.config))
        contexts = look(engine, self.policy, prefixes)
        for row, (prefix, context) in enumerate(zip(prefixes, contexts, strict=True)):
            self._rows(case, report, engine, row, prefix, context)
        before = [torch.stack(entries(context)).clone() for context in contexts]
        for role in case.outputs:
            if role.startswith("velocity_t"):
                times = [_time(role)] * len(noise)
                got = velocities(engine, self.policy, contexts, noise, times)
                report.close(case.name, role, got, case.wanted(role), NEAR)
        made, path = flow(engine, self.policy, contexts, noise, steps)
        if "velocities" in case.outputs:
            wanted = case.wanted("velocities")
            if not report.exact:  # an error of one step is fed to the next: compare each step on the reference's path
                x, path = noise, []
                for step, v in enumerate(wanted.to(noise.device).view(steps, *noise.shape)):
                    path.append(velocities(engine, self.policy, contexts, x, [1 - step / steps] * len(noise)))
                    x = x - v / steps
            report.close(case.name, "velocities", torch.stack(path).reshape(wanted.shape), wanted, NEAR)
        report.close(case.name, "actions", made, case.wanted("actions"), ACTIONS)
        same = all(torch.equal(torch.stack(entries(c)), old) for c, old in zip(contexts, before, strict=True))
        report.equal(case.name, "prefix untouched by the flow", same, True)
        for row in range(len(noise)) if len(noise) > 1 else ():
            alone = look(engine, self.policy, prefixes[row : row + 1])
            got, _ = flow(engine, self.policy, alone, noise[row : row + 1], steps)
            report.close(case.name, f"actions of row {row} alone", got, case.wanted("actions")[row : row + 1], ACTIONS)

    def _prefix(self, case: Case, row: int) -> tuple[Tensor, Tensor]:
        """Camera rows and prompt ids of a request, without masked cameras and padding."""
        mask = case.given("image_mask")[row].tolist()
        images = [case.given(f"image_{slot}")[row] for slot in range(len(mask))]
        shown = [image for image, there in zip(images, mask, strict=True) if there]
        if not shown:
            raise UnusableFolder(f"case `{case.name}`: row {row} has no camera")
        return self.vision.encode(torch.stack(shown)), case.given("tokens")[row][case.given("token_mask")[row]]

    def _masks(self, case: Case, report: Report, prefixes: list[tuple[Tensor, Tensor]]) -> None:
        """Which of the padded prefix are there."""
        images = case.given("image_mask").repeat_interleave(self.policy.config.image_tokens, dim=1)
        valid = torch.cat([images, case.given("token_mask")], dim=1)
        if "prefix_mask" in case.outputs:
            report.equal(case.name, "prefix_mask", valid, case.wanted("prefix_mask"))
        if "prefix_valid_tokens" in case.expect:
            counts = [len(seen) + len(ids) for seen, ids in prefixes]
            wanted = case.expect["prefix_valid_tokens"]
            report.equal(case.name, "prefix_valid_tokens", counts, wanted if isinstance(wanted, list) else [wanted])

    def _rows(
        self,
        case: Case,
        report: Report,
        engine: TransformerEngine,
        row: int,
        prefix: tuple[Tensor, Tensor],
        context: Context,
    ) -> None:
        """Rows, hidden states, positions and cached entries of one request's prefix, at its valid places."""
        seen, ids = prefix
        count = len(seen) + len(ids)
        keys, values = entries(context)
        whole, positions = Context(engine.pool), []

        def hidden(run: Run, rows: Tensor) -> Tensor:
            positions.append(run.positions)
            return self.policy.hidden(run, rows)[None]

        rows = self.policy.prefix(seen, ids)
        (column,) = engine.call(hidden, HIDDEN, [Call((rows,), (whole,), count)])
        report.equal(case.name, "entries and counter", [context.length, context.position], [count, count])
        for layer in range(self.policy.config.layers):  # `read` leaves out what no op needs, and nothing else
            cached, full = (torch.cat(entries(each, layer)) for each in (context, whole))
            report.close(case.name, f"entries of layer {layer}, batched", cached, full, NEAR)
        whole.drop()
        found = {
            "prefix_emb": rows,
            "prefix_hidden": column[0],
            "k_last": keys,
            "v_last": values,
        }
        for role, got in found.items():
            if role in case.outputs:
                wanted = case.wanted(role)[row][..., case.wanted("prefix_mask")[row], :]
                report.close(case.name, role, got, wanted, NEAR)
        if "prefix_positions" in case.outputs:  # a masked camera leaves no hole
            wanted = case.wanted("prefix_positions")[row][case.wanted("prefix_mask")[row]]
            report.equal(case.name, "prefix_positions", positions[0], wanted)

    # ---------------------------------------------------------------------------------------------------------- host side

    def prompt(self, case: Case, report: Report) -> None:
        """State bins, prompts, and a robot's units."""
        for index, row in enumerate(case.expect.get("rows", ())):
            state = row["normalized_state"]
            report.equal(case.name, f"bins of row {index}", state_bins(state), row["bins"])
            report.equal(case.name, f"prompt of row {index}", prompt_text(row["task"], state), row["prompt"])
        quantile = case.expect["quantile"]
        raw = case.given("raw_state").cpu().numpy()
        state = normalise(raw, quantile["q01"], quantile["q99"])
        report.close(case.name, "normalized_state", state, case.wanted("normalized_state"), PIXEL, always_f32=True)
        report.equal(case.name, "prompt in robot units", prompt_text("go", state), quantile["prompt"])
        low, high = (case.given(name).cpu().numpy() for name in ("action_q01", "action_q99"))
        actions = unnormalise(case.given("actions_normalized").cpu().numpy(), low, high)
        report.close(
            case.name, "actions_robot_units", actions, case.wanted("actions_robot_units"), PIXEL, always_f32=True
        )

    def image(self, case: Case, report: Report) -> None:
        """Resized, padded pixels."""
        for role in case.outputs:
            image = case.given(role.replace("pixels_", "image_u8_")).cpu().numpy()
            got, wanted = pixels(image, self.vision.config.image_size), case.wanted(role)
            report.close(case.name, role, got.reshape(wanted.shape), wanted, PIXEL, absolute=True, always_f32=True)


def _time(role: str) -> float:
    """The time in a name: velocity_t1 is at 1, velocity_t05 at 0.5."""
    digits = role.removeprefix("velocity_t")
    return float(f"{digits[0]}.{digits[1:] or '0'}")
