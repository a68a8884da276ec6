"""The parameters of the slot generator: `ar`, `sd`, `pearl`, the ablations and every placement are values of these."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pearl_pp.messages import Change
from pearl_pp.schedule.placement import Placement, Replica

# A slot is this many ticks, so that p/gamma is an integer for every gamma up to 16 and all arithmetic is exact.
TICKS = 720_720


@dataclass(frozen=True)
class Schedule:
    """Everything the generator needs besides the verdicts.

    Args:
        num_stages: N.
        replicas: draft replicas; empty for plain decoding.
        fill: F. verify_interval: p.
        pass_ticks: length of one draft pass in ticks of a slot.
        first_window: tokens drafted before the first chunk after a restart enters; 0 is pre-verify.
        draft_limit: tokens drafted after a restart at most; None is post-verify (drafting never waits).
        ships_kv: hand-off by KV entries; otherwise the replica feeds the missing tokens itself.
        sends_probs: q travels with the drafted tokens.
        prefill_piece: the prompt goes through the stages in pieces of so many tokens; 0 is in one piece.
        report_at: numbers of the verdicts before which every rank reports its pass times to the last stage.
        active: numbers of the replicas that may be used, in rising order; None is all. The others keep what they
            have, and none of their ranks is told what the draft does.
    """

    num_stages: int
    replicas: tuple[Replica, ...] = ()
    fill: int = 1
    verify_interval: int = 1
    pass_ticks: int = TICKS
    first_window: int = 0
    draft_limit: int | None = None
    ships_kv: bool = False
    sends_probs: bool = False
    prefill_piece: int = 0
    report_at: frozenset[int] = frozenset()
    active: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.fill <= self.num_stages:
            raise ValueError(f"fill {self.fill} must be in 1..{self.num_stages}")
        if not 1 <= self.verify_interval <= self.num_stages:
            raise ValueError(f"verify_interval {self.verify_interval} must be in 1..{self.num_stages}")
        if self.pass_ticks < 1 or self.first_window < 0 or (self.draft_limit or 0) < 0:
            raise ValueError("pass_ticks must be positive, first_window and draft_limit not negative")
        if self.in_use != tuple(sorted({*self.in_use} & {*range(len(self.replicas))})):
            raise ValueError(f"active {self.active} must be numbers of {len(self.replicas)} replicas, in rising order")

    @property
    def last_rank(self) -> int:
        return self.num_stages - 1

    @property
    def world_size(self) -> int:
        return max([self.num_stages, *(s.rank + 1 for replica in self.replicas for s in replica)])

    @property
    def in_use(self) -> tuple[int, ...]:
        """Numbers of the replicas that may be used; none decodes plainly."""
        return tuple(range(len(self.replicas))) if self.active is None else self.active

    @property
    def drafts(self) -> bool:
        return bool(self.in_use)

    @property
    def max_pass_ticks(self) -> int | None:
        """A longer pass would never fit between two chunks; None where a replica shares no rank with the target.

        In steady state a stage's rank holds a chunk in one slot of p.
        """
        if any(all(s.rank >= self.num_stages for s in self.replicas[number]) for number in self.in_use):
            return None
        return max(1, self.verify_interval - 1) * TICKS

    def with_pass_ticks(self, pass_ticks: int) -> Schedule:
        """The same schedule with another pass length, cut to what fits."""
        limit = self.max_pass_ticks
        return replace(self, pass_ticks=max(1, min(pass_ticks, limit) if limit else pass_ticks))

    def as_change(self) -> Change:
        """What a change may set, as it is here."""
        return Change(
            self.in_use,
            self.fill,
            self.verify_interval,
            self.pass_ticks,
            self.first_window,
            self.draft_limit,
            self.ships_kv,
        )

    def changed(self, change: Change) -> Schedule:
        """The schedule after a verdict with `change`."""
        return replace(
            self,
            active=change.active,
            fill=change.fill,
            verify_interval=change.verify_interval,
            pass_ticks=change.pass_ticks,
            first_window=change.first_window,
            draft_limit=change.draft_limit,
            ships_kv=change.ships_kv,
        )


# A pass that comes out this much too long is taken to fit: half a slot measured as 0.51 would leave half of each idle.
_TOLERANCE = 1.05


def fitted_pass_ticks(ticks: int, replicas: tuple[Replica, ...], num_stages: int) -> int:
    """Length of a pass, where a replica shares a rank with the target: one a little longer than 1/k of a slot, or than
    k slots, is taken for as long.
    """
    if not any(shard.rank < num_stages for replica in replicas for shard in replica):
        return ticks
    fit = TICKS // round(TICKS / ticks) if ticks < TICKS else TICKS * round(ticks / TICKS)
    return fit if fit < ticks <= fit * _TOLERANCE else ticks


def plain(num_stages: int) -> Schedule:
    """`ar`: every chunk is one token and its row is a bonus row."""
    return Schedule(num_stages, verify_interval=num_stages, draft_limit=0)


def speculative(
    placement: Placement, gamma: int, *, pre_verify: bool = True, post_verify: bool = True, sends_probs: bool = False
) -> Schedule:
    """`pearl` and its ablations (paper, Table 4); without pre- and post-verify it is `sd`.

    Args:
        placement: replicas, F, p and the hand-off.
        gamma: tokens drafted in p slots; for `sd` tokens per round.
    """
    schedule = Schedule(
        placement.num_stages,
        placement.replicas,
        placement.fill,
        placement.verify_interval,
        first_window=0 if pre_verify else gamma,
        draft_limit=None if post_verify else gamma,
        ships_kv=placement.handoff == "ship",
        sends_probs=sends_probs,
    )
    if not pre_verify and not post_verify:
        # The target waits for the whole draft, so slots do not divide the drafting: the round is drafted in slot 0.
        return replace(schedule, pass_ticks=max(1, TICKS // gamma))
    return schedule.with_pass_ticks(placement.verify_interval * TICKS // gamma)
