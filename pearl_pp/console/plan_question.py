"""From the options of `pearl-pp plan` to the planner's question: config.json files, a profile, or assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pearl_pp.config import read_profile
from pearl_pp.config.plan_options import PlanOptions
from pearl_pp.console.plan_models import open_models, sizes_of
from pearl_pp.errors import UserError
from pearl_pp.planning import machine
from pearl_pp.planning.machine import ModelSizes
from pearl_pp.planning.memory import FIXED, GB, ModelBytes, shares_of
from pearl_pp.planning.question import Question, Wanted, bytes_of_profile
from pearl_pp.simulation.profile import Link, Profile
from pearl_pp.stages.source import ModelSource

DEFAULT_CONTEXT = 4096
DEFAULT_UTILIZATION = 0.9  # of a card, as in a run; --memory-gb is taken as it is, as in a run


@dataclass(frozen=True)
class Asked:
    """A question with where its numbers come from, one line each."""

    question: Question
    notes: tuple[str, ...]


def ask(options: PlanOptions) -> Asked:
    """Reads what the options name. Raises UserError."""
    profile = None if options.profile is None else read_profile(options.profile, "--profile")
    if profile is None and options.target is None:
        raise UserError("--target", None, "say which model, or give --profile FILE.yaml")
    num_ranks = _num_ranks(options, profile)
    memory = _memory(options, profile, num_ranks)
    sources = open_models(options)
    sizes = sizes_of(sources, options)
    target, draft = sizes.get("--target"), sizes.get("--draft")
    if profile is None:
        assert target is not None
        machine_profile, notes = _assumed(options, num_ranks, target, draft)
    else:
        machine_profile, notes = _known(options, profile, target, draft)
    bytes_of = {}
    for name, model, entry in (("target", target, machine_profile.target), ("draft", draft, machine_profile.draft)):
        bytes_of[name] = model.sizes if model else bytes_of_profile(entry, machine_profile.target.vocab_size)
    has_draft = draft is not None or profile is not None
    if has_draft:
        _check_smaller(options, bytes_of["draft"], bytes_of["target"])
    else:
        notes.append("no draft is given: only plain decoding is planned (--draft)")
    acceptance, source = _acceptance(options, profile)
    notes.append(f"acceptance {acceptance:g} ({source})")
    _check_layers(options, len(bytes_of["target"].layers), num_ranks)
    question = Question(
        machine_profile,
        bytes_of["target"],
        bytes_of["draft"] if has_draft else None,
        memory,
        _context(options, sources.get("--target")),
        acceptance,
        FIXED[options.device],
        _wanted(options),
    )
    return Asked(question, tuple(notes))


def _num_ranks(options: PlanOptions, profile: Profile | None) -> int:
    if options.num_ranks is not None:
        if profile is not None and options.num_ranks > profile.num_ranks:
            reason = f"the profile {options.profile} describes {profile.num_ranks} ranks"
            raise UserError("-n", options.num_ranks, reason)
        return options.num_ranks
    if options.memory_gb is not None and (len(options.memory_gb) > 1 or profile is None):
        num_ranks = len(options.memory_gb)
        if profile is not None and num_ranks > profile.num_ranks:
            shown = ",".join(f"{number:g}" for number in options.memory_gb)
            reason = f"has {num_ranks} numbers, the profile {options.profile} describes {profile.num_ranks} ranks"
            raise UserError("--memory-gb", shown, reason)
        return num_ranks
    if profile is None:
        raise UserError("--memory-gb", None, "say how much each rank has, as in --memory-gb 24,24,12,12")
    return profile.num_ranks


def _memory(options: PlanOptions, profile: Profile | None, num_ranks: int) -> tuple[float, ...]:
    """Bytes that each rank may use."""
    if options.memory_gb is not None:
        each = [share.num_bytes for share in shares_of(options.memory_gb, num_ranks)]
    elif profile is not None:
        each = [number * GB for number in profile.ranks.memory_gb[:num_ranks]]
    else:
        raise UserError("--memory-gb", None, "say how much each rank has, as in --memory-gb 24,24,12,12")
    default = 1.0 if options.memory_gb is not None else DEFAULT_UTILIZATION
    share = default if options.gpu_memory_utilization is None else options.gpu_memory_utilization
    return tuple(share * number for number in each)


def _check_smaller(options: PlanOptions, draft: ModelBytes, target: ModelBytes) -> None:
    drafts, targets = (model.weights_of(0, len(model.layers)) / GB for model in (draft, target))
    if drafts > targets:
        option = "--draft" if options.draft is not None else "--profile"
        reason = f"has {drafts:.3g} GB of weights, the target {targets:.3g}: the draft is the smaller model"
        raise UserError(option, options.draft or options.profile, reason)


# -- times


def _assumed(
    options: PlanOptions, num_ranks: int, target: ModelSizes, draft: ModelSizes | None
) -> tuple[Profile, list[str]]:
    """No profile: bytes over bandwidth."""
    bandwidth, source = _bandwidth(options, num_ranks)
    link = _link(options, machine.ASSUMED_LINK)
    profile = machine.assumed_profile(target, draft, bandwidth, link)
    entries = (profile.target, profile.draft)
    models = zip(("target", "draft"), entries, strict=True)
    times = ", ".join(f"{name} pass {entry.one_token_ms:.3g} ms" for name, entry in models if draft or name == "target")
    is_assumed = options.link_gb_s is None or options.link_latency_us is None
    return profile, [
        f"times: {times}, from {source} at {machine.EFFICIENCY:.0%} and {machine.LAUNCH_MS:g} ms a layer at least "
        "(assumed; pearl-pp bench profile measures them)",
        f"links: {link.latency_us:g} us, {link.bandwidth_gb_s:g} GB/s" + (" (assumed)" if is_assumed else ""),
    ]


def _bandwidth(options: PlanOptions, num_ranks: int) -> tuple[Sequence[float], str]:
    given = options.bandwidth_gb_s
    if given is None:
        assumed = machine.ASSUMED_BANDWIDTH_GB_S
        return (assumed,) * num_ranks, f"{assumed:g} GB/s (assumed, --bandwidth-gb-s)"
    shown = ",".join(f"{number:g}" for number in given)
    if len(given) not in (1, num_ranks):
        reason = f"has {len(given)} numbers, there are {num_ranks} ranks; give one for all or one for each"
        raise UserError("--bandwidth-gb-s", shown, reason)
    return (given if len(given) == num_ranks else given * num_ranks), f"{shown} GB/s"


def _known(
    options: PlanOptions, profile: Profile, target: ModelSizes | None, draft: ModelSizes | None
) -> tuple[Profile, list[str]]:
    """The profile's machine; its times, scaled where other models are given."""
    if options.bandwidth_gb_s is not None:
        raise UserError("--bandwidth-gb-s", None, "the profile says how fast its ranks are; leave one of them out")
    notes = [f"times and links: {options.profile}, {profile.name}"]
    changes: dict[str, object] = {}
    for option, model, entry in (("--target", target, profile.target), ("--draft", draft, profile.draft)):
        if model is None:
            if entry.weights_gb is None:
                notes.append(f"{option.removeprefix('--')}: the profile has no weights_gb, so none are counted")
            continue
        if profile.target.weights_gb is None or profile.draft.weights_gb is None:
            reason = "has no weights_gb, so its times cannot be scaled to another model; leave the model out"
            raise UserError("--profile", options.profile, reason)
        scaled = model.profile(machine.scaled_pass_ms(model, profile.draft, profile.target), entry)
        changes[option.removeprefix("--")] = scaled if option == "--target" else machine.as_draft(scaled)
        notes.append(f"{option.removeprefix('--')}: pass {scaled.one_token_ms:.3g} ms, scaled by weights")
    if options.link_gb_s is not None or options.link_latency_us is not None:
        link = profile.link if isinstance(profile.link, Link) else machine.ASSUMED_LINK
        changes["link"] = _link(options, link)
    if target is not None:
        faster = profile.target.one_token_ms / getattr(changes["target"], "one_token_ms", 1.0)
        changes["prefill_tokens_per_s"] = profile.prefill_tokens_per_s * faster
    return profile.model_copy(update=changes), notes


def _link(options: PlanOptions, otherwise: Link) -> Link:
    latency = otherwise.latency_us if options.link_latency_us is None else options.link_latency_us
    return Link(latency_us=latency, bandwidth_gb_s=options.link_gb_s or otherwise.bandwidth_gb_s)


# -- the rest


def _acceptance(options: PlanOptions, profile: Profile | None) -> tuple[float, str]:
    if options.acceptance is not None:
        return options.acceptance, "given"
    if profile is not None:
        return profile.acceptance, "the profile's"
    return machine.ASSUMED_ACCEPTANCE, "assumed, --acceptance"


def _context(options: PlanOptions, target: ModelSource | None) -> int:
    longest = None if target is None else target.max_positions
    if options.context is not None:
        if longest is not None and options.context > longest:
            raise UserError("--context", options.context, f"is more than the target's {longest} positions")
        return options.context
    return min(DEFAULT_CONTEXT, longest or DEFAULT_CONTEXT)


def _check_layers(options: PlanOptions, num_layers: int, num_ranks: int) -> None:
    """A split is for all ranks, or for all but the last one, which then has the draft alone."""
    if num_layers < num_ranks - 1:
        reason = f"the target has {num_layers} layers, too few for so many pipeline stages"
        raise UserError("-n", num_ranks, reason)
    for option, value in (("--fill", options.fill), ("--verify-interval", options.verify_interval)):
        if isinstance(value, int) and value > num_ranks:
            raise UserError(option, value, f"must be between 1 and the number of stages, {num_ranks} at most")
    split = options.layer_split
    if split is None:
        return
    shown = ",".join(map(str, split))
    if len(split) not in (num_ranks, num_ranks - 1):
        raise UserError("--layer-split", shown, f"has {len(split)} stages, there are {num_ranks} ranks")
    if sum(split) != num_layers:
        raise UserError("--layer-split", shown, f"has {sum(split)} layers, the target has {num_layers}")


def _wanted(options: PlanOptions) -> Wanted:
    def count(value: int | str) -> int | None:
        return value if isinstance(value, int) else None

    wanted = Wanted(options.layer_split, count(options.fill), count(options.verify_interval), count(options.gamma))
    return replace(wanted, handoff=options.handoff)
