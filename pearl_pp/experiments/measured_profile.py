"""`pearl-pp bench profile`: a machine and a model pair, measured once, as a profile for plans and simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import yaml

from pearl_pp.config import RunConfig
from pearl_pp.experiments import figures
from pearl_pp.experiments.commands import CONTEXT, OnProgress, cpu_name, prompt_message, start_group
from pearl_pp.experiments.measured_times import RankTimes, StageTimes, rank_times
from pearl_pp.runtime.request import Prompt
from pearl_pp.simulation.profile import Profile

EQUAL = 1.5  # links whose times differ by no more than this factor are told as one


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Args:
        config: the pair and all other run options; its placement is `hop`.
        repeats: passes of each length.
        out: the profile's file.
    """

    config: RunConfig
    prompts: Sequence[Prompt]
    num_ranks: int
    repeats: int
    out: str


@dataclass(frozen=True)
class Measured:
    """All that a profile is made of.

    Args:
        links: [src][dst], latency in us and bandwidth in GB/s; None on the diagonal.
        pair: `describe_pair` of the ranks: sizes of both models.
        judged: tokens that `acceptance` is a share of.
    """

    ranks: Sequence[RankTimes]
    links: Sequence[Sequence[tuple[float, float] | None]]
    pair: Mapping[str, Any]
    acceptance: float
    judged: int


def measure(settings: Settings, on_progress: OnProgress = lambda *_: None) -> Measured:
    """Starts the ranks, measures their passes and links one after another, and runs the prompts with PEARL.

    Raises:
        UserError: an option, a model or a placement that does not fit.
        ProgramFailed: a rank ended before it had answered.
    """
    config = settings.config.updated(strategy="pearl", placement="hop", handoff="auto")
    with ExitStack() as stack:
        on_progress("starting", 0, 1)
        program = start_group(f"{settings.num_ranks} ranks", config, settings.num_ranks)
        stack.callback(program.close)
        stack.push(program.let_go)
        pair = program.answer()["pair"]
        on_progress("passes and links", 0, 1)
        told = program.ask({"measure": {"repeats": settings.repeats}})
        runs = []
        for done, prompt in enumerate(settings.prompts):
            on_progress("acceptance", done, len(settings.prompts))
            runs.append(program.ask({"run_opened": {"gamma": config.gamma, "prompt": prompt_message(prompt)}}))
    judged = figures.num_judged(runs)
    acceptance = figures.speed(runs)["acceptance_rate"] or 0.0
    return Measured([rank_times(one) for one in told["ranks"]], told["links"], pair, acceptance, judged)


def profile_of(measured: Measured, settings: Settings) -> Profile:
    """The profile that says what was measured.

    T(k) are the stages' passes added; a rank's speed is that of its layers without the head, and the mean over all
    layers is 1, so that T stays the sum; t(k) is the mean over the replicas, each at its rank's speed.
    """
    stages = [rank.target for rank in measured.ranks if rank.target is not None]
    speeds = _speeds(stages)
    replicas = [
        (speed, shard) for speed, rank in zip(speeds, measured.ranks, strict=True) for shard in rank.shards.values()
    ]
    prefill_s = sum(stage.prefill_s for stage in stages)
    content = {
        "name": f"{settings.num_ranks} ranks, {settings.config.target or 'embedded pair'}",
        "target": measured.pair["target"] | _times([(1.0, stage) for stage in stages], added=True),
        "draft": measured.pair["draft"] | _times(replicas, added=False),
        "ranks": {
            "memory_gb": [_rounded(rank.memory_bytes / 1e9) for rank in measured.ranks],
            "speed": [round(speed, 3) for speed in speeds],
        },
        "prefill_tokens_per_s": _rounded(stages[0].prefill_tokens / prefill_s),
        "link": _link(measured.links),
        "acceptance": round(measured.acceptance, 4),
    }
    return Profile.model_validate(content)


def _speeds(stages: Sequence[StageTimes]) -> list[float]:
    num_layers = sum(stage.num_layers for stage in stages)
    raw = [stage.num_layers / stage.layers_s for stage in stages]
    scale = sum(stage.num_layers / num_layers / speed for stage, speed in zip(stages, raw, strict=True))
    return [speed * scale for speed in raw]


def _times(passes: Sequence[tuple[float, StageTimes]], added: bool) -> dict[str, Any]:
    """Pass times in ms and weights: of stages, which add up, or the mean of copies, each at its rank's speed."""
    combined = sum if added else fmean
    lengths = range(min(len(stage.seconds) for _, stage in passes))
    return {
        "pass_ms": [_rounded(1e3 * combined([speed * stage.seconds[i] for speed, stage in passes])) for i in lengths],
        "extra_token_ms": _rounded(1e3 * combined([speed * stage.extra_s for speed, stage in passes])),
        "weights_gb": _rounded(combined([stage.weight_bytes for _, stage in passes]) / 1e9),
    }


def _link(links: Sequence[Sequence[tuple[float, float] | None]]) -> Any:
    """One entry where all pairs are about alike, else one for each pair."""
    known = [link for row in links for link in row if link is not None]
    if all(max(values) <= EQUAL * min(values) for values in zip(*known, strict=True)):
        return _entry([fmean(values) for values in zip(*known, strict=True)])
    return [[None if link is None else _entry(link) for link in row] for row in links]


def _entry(link: Sequence[float]) -> dict[str, float]:
    latency_us, bandwidth_gb_s = link
    return {"latency_us": _rounded(latency_us), "bandwidth_gb_s": _rounded(bandwidth_gb_s)}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def profile_text(profile: Profile, measured: Measured, settings: Settings) -> str:
    """The profile as YAML; comments say where each number comes from."""
    content = profile.model_dump(mode="json", exclude_none=True)
    if isinstance(content["link"], list):
        content["link"] = profile.model_dump(mode="json")["link"]  # its diagonal is null
    origins = _origins(measured, settings.repeats)
    lines = [
        f"# Measured by pearl-pp bench profile on {datetime.now(UTC):%Y-%m-%d}: {cpu_name()}, "
        f"{measured.pair['device']}, {settings.num_ranks} ranks.",
    ]
    for key, value in content.items():
        if key in ("target", "draft", "ranks"):
            lines.append(f"{key}:")
            entries = {f"{key}.{name}": (f"  {name}", entry) for name, entry in value.items()}
        else:
            entries = {key: (key, value)}
        for place, (label, entry) in entries.items():
            dumped = yaml.safe_dump(entry, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
            origin = origins.get(place, "the model's config")
            lines.append(f"{label}: {dumped}  # {origin}" if origin else f"{label}: {dumped}")
    return "\n".join(lines) + "\n"


def _origins(measured: Measured, repeats: int) -> dict[str, str]:
    stages = [rank.target for rank in measured.ranks if rank.target is not None]
    passes = f"medians of {repeats} passes after {CONTEXT} tokens, one rank at a time, over 1, 2, 3, .. tokens"
    further = "measured: a longer pass"
    return {
        "name": "",
        "target.pass_ms": f"measured: {passes}; all stages added",
        "target.extra_token_ms": further,
        "draft.pass_ms": f"measured: {passes}; mean of the replicas",
        "draft.extra_token_ms": further,
        "target.kv_bytes_per_token": f"counted, in {measured.pair['dtype']}",
        "draft.kv_bytes_per_token": f"counted, in {measured.pair['dtype']}",
        "target.weights_gb": "counted on the ranks",
        "draft.weights_gb": "counted on a rank",
        "ranks.memory_gb": "measured: the card's, or the machine's over its ranks",
        "ranks.speed": "measured: layers a second without the head, over the mean",
        "prefill_tokens_per_s": f"measured: one pass over {stages[0].prefill_tokens} tokens through all stages",
        "link": "measured: half a round trip, of a small and of a large message",
        "acceptance": f"measured: of {measured.judged} judged tokens",
    }


def summary(profile: Profile, out: str) -> list[str]:
    """What to show of it."""
    target, draft = profile.target, profile.draft
    last = len(target.times_ms)
    return [
        f"real      T {target.one_token_ms:.4g} ms ({last} tokens: {target.times_ms[-1]:.4g}), "
        f"t {draft.one_token_ms:.4g} ms ({len(draft.times_ms)} tokens: {draft.times_ms[-1]:.4g}), "
        f"c = T/t {profile.ratio:.2f}",
        f"real      prefill {profile.prefill_tokens_per_s:.4g} tokens/s, acceptance {profile.acceptance:.1%}, speeds "
        + ", ".join(f"{speed:g}" for speed in profile.ranks.speed),
        f"written to {out}: --emulate {out}",
    ]
