"""The rows of the emulated tables: which placement runs on which machine, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

from pearl_pp.config import RunConfig, read_profile
from pearl_pp.planning.choice import choose
from pearl_pp.planning.coverage import tokens_per_window
from pearl_pp.planning.partition import split_layers
from pearl_pp.planning.question import Wanted
from pearl_pp.runtime.emulation import question_of
from pearl_pp.schedule.placement import Replica, Shard
from pearl_pp.simulation.profile import Profile

PROFILES = Path("configs/profiles")
PROMPT_LEN = 4
LONG_PROMPT = 2048
SHORT_TEXT = 24  # tokens after a long prompt: no more are needed to see the first


@dataclass(frozen=True)
class Row:
    """A configuration.

    Args:
        num_ranks: all of them, with the draft's own.
        reference: another row's name.
        least, most: percent of `reference` that it must reach, or stay below; 0 where there is no such bound.
        sweeps: it runs with the gamma that the simulator finds best.
        placement_file: what the file of its placement holds, where it is none of the named ones.
        num_tokens: where not as many as all others.
    """

    name: str
    num_ranks: int
    profile: str
    acceptance: float
    options: dict[str, Any] = field(default_factory=dict)
    reference: str = ""
    least: float = 0.0
    most: float = 0.0
    sweeps: bool = False
    placement_file: dict[str, Any] | None = None
    prompt_len: int = PROMPT_LEN
    num_tokens: int | None = None


def profile_path(name: str) -> Path:
    return PROFILES / f"{name}.yaml"


def must_rows() -> list[Row]:
    """What several windows in flight must gain over PEARL with a rank for the draft alone, at its best gamma."""
    rows = []

    def group(num_stages: int, ratio: int, acceptance: float, others: Iterable[tuple[str, dict, float]]) -> None:
        title = f"N {num_stages} c {ratio} alpha {acceptance:g}"
        profile = f"even_c{ratio}"
        reference = f"{title} dedicated"
        options = {"placement": "dedicated"}
        rows.append(Row(reference, num_stages + 1, profile, acceptance, options, sweeps=True))
        for name, options, least in others:
            rows.append(Row(f"{title} {name}", num_stages, profile, acceptance, options, reference, least))

    hop = {"placement": "hop"}

    def pipelined(fill: int, interval: int) -> dict:
        return {"placement": "pipelined", "fill": fill, "verify_interval": interval}

    single = {"placement": "single", "fill": 4, "verify_interval": 1}
    group(
        4, 8, 0.7, [("hop", hop, 97), ("p 2", pipelined(1, 2), 112), ("F 3 p 2", pipelined(3, 2), 120),
                    ("one replica F 4 p 1", single, 114)],
    )  # fmt: skip
    group(4, 8, 0.8, [("hop", hop, 97), ("p 2", pipelined(1, 2), 110), ("F 3 p 2", pipelined(3, 2), 114)])
    group(8, 12, 0.7, [("F 7 p 2", pipelined(7, 2), 127)])
    group(3, 8, 0.7, [("F 3 p 2", pipelined(3, 2), 108)])
    group(2, 8, 0.7, [("F 2 p 2", pipelined(2, 2), 105)])
    return rows


def profile_rows() -> list[Row]:
    """All placements on three machines: the simulator with measured message costs must agree within 5 %."""
    placements: dict[str, dict[str, Any]] = {
        "single": {"placement": "single"},
        "single F 4 p 1": {"placement": "single", "fill": 4, "verify_interval": 1},
        "hop": {"placement": "hop"},
        "hop catchup": {"placement": "hop", "handoff": "catchup"},
        "hop ship": {"placement": "hop", "handoff": "ship"},
        "pipelined": {"placement": "pipelined", "verify_interval": 2},
        "sharded": {"placement": "sharded"},
        "sharded pair": {},
        "draft alone": {"placement": "dedicated"},
        "draft alone p 1": {"placement": "dedicated", "verify_interval": 1},
        "sd": {"strategy": "sd", "gamma": 5},
        "ar": {"strategy": "ar"},
    }
    rows = []
    for name in ("even_c8", "consumer_4x24gb_32b", "two_machines_10gbe_32b"):
        profile = read_profile(str(profile_path(name)))
        for label, options in placements.items():
            content = None if options else sharded_pair(profile, 4)
            rows.append(Row(f"{name} {label}", 4, name, profile.acceptance, options, placement_file=content))
    return rows


def planned_rows() -> list[Row]:
    """The planner's first choice beside the named placements, on even cards, mixed ones and two machines.

    The named ones cut the target as a run would; the file beside the planned one evenly, whether that fits or not.
    """
    named: dict[str, dict[str, Any]] = {
        "hop": {"placement": "hop"},
        "pipelined": {"placement": "pipelined"},
        "p 2": {"placement": "pipelined", "fill": 1, "verify_interval": 2},
        "single F 4 p 1": {"placement": "single", "fill": 4, "verify_interval": 1},
        "draft alone p 1": {"placement": "dedicated", "verify_interval": 1},
        "sd gamma 3": {"strategy": "sd", "gamma": 3},
        "sd gamma 5": {"strategy": "sd", "gamma": 5},
        "ar": {"strategy": "ar"},
    }
    rows = []
    for name, bound in (("even_c8", 0.0), ("mixed_2x24gb_2x12gb_14b", 120.0), ("two_machines_10gbe_32b", 0.0)):
        profile = read_profile(str(profile_path(name)))
        options, content = planned(str(profile_path(name)), 4)
        even = content | {"target": list(split_layers(profile.target.num_layers, len(content["target"])))}
        reference = f"{name} planned, but layers even"
        rows.append(Row(reference, 4, name, profile.acceptance, options, placement_file=even))
        rows.append(Row(f"{name} planned", 4, name, profile.acceptance, options, reference, bound, 0, False, content))
        rows += [Row(f"{name} {label}", 4, name, profile.acceptance, given) for label, given in named.items()]
    return rows


def planned(path: str, num_ranks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The planner's first choice for a profile: options of a run, and what its placement file holds."""
    config = RunConfig(emulate=path)
    question = question_of(config, num_ranks)
    free = replace(question.wanted, strategies=Wanted().strategies)
    first = choose(replace(question, wanted=free)).first
    content = first.placement.record()
    return {"strategy": first.strategy}, {key: value for key, value in content.items() if key != "name"}


def sharded_pair(profile: Profile, num_ranks: int) -> dict[str, Any]:
    """A placement file: two replicas, each cut over half of the ranks, so that they keep the draft busiest."""
    cut = profile.draft.num_layers // 2

    def pairs() -> Iterator[tuple[Replica, Replica]]:
        for a, b, c, d in permutations(range(num_ranks), 4):
            if a < c:  # the order of the replicas does not matter
                first, second = (
                    (Shard(x, 0, cut), Shard(y, cut, profile.draft.num_layers)) for x, y in ((a, b), (c, d))
                )
                yield first, second

    best = max(pairs(), key=lambda replicas: tokens_per_window(num_ranks, replicas, num_ranks))
    layers, rest = divmod(profile.target.num_layers, num_ranks)
    return {
        "target": [layers + (rank < rest) for rank in range(num_ranks)],
        "replicas": [[{"rank": s.rank, "layers": [s.start, s.end]} for s in replica] for replica in best],
    }


def prefill_rows() -> list[Row]:
    """The first token of a long prompt: through the stages in pieces, and in one piece.

    A bound where arithmetic sets the time of a short piece; the other machines are for information.
    """
    bounds = {"consumer_4x24gb_32b": 45.0, "a100_llama2_7b_70b": 0.0, "two_machines_10gbe_32b": 0.0, "even_c8": 0.0}
    rows = []
    for name, bound in bounds.items():
        acceptance = read_profile(str(profile_path(name))).acceptance
        whole = f"{name} one piece"
        cases = ((whole, LONG_PROMPT, "", 0.0), (f"{name} pieces", "auto", whole, bound))
        for label, piece, reference, most in cases:
            options = {"placement": "hop", "prefill_piece": piece}
            rows.append(
                Row(
                    label,
                    4,
                    name,
                    acceptance,
                    options,
                    reference,
                    most=most,
                    prompt_len=LONG_PROMPT,
                    num_tokens=SHORT_TEXT,
                )
            )
    return rows


class Table(NamedTuple):
    """Rows, and whether the time to the first token is compared, not speed after it."""

    rows: Callable[[], list[Row]]
    first_token: bool = False


TABLES = {
    "must": Table(must_rows),
    "profiles": Table(profile_rows),
    "planned": Table(planned_rows),
    "prefill": Table(prefill_rows, first_token=True),
}
