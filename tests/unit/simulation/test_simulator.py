"""The simulator against the closed form and against known schedules."""

from __future__ import annotations

import itertools

import pytest

from pearl_pp.schedule.instructions import Draft, ForwardTarget, Kind
from pearl_pp.schedule.placement import Placement, Shard
from pearl_pp.schedule.schedule import Schedule, plain, speculative
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.verdicts import independent
from pearl_pp.telemetry import Activity

NUM_TOKENS = 4_000


class EvenCosts:
    """T = 1 over even stages, t = 1/c; messages take `message_s`."""

    def __init__(self, num_stages: int, ratio: float, message_s: float = 0.0) -> None:
        self.stage_s, self.draft_s, self.message_s = 1 / num_stages, 1 / ratio, message_s

    def target(self, rank: int, num_tokens: int) -> float:
        return self.stage_s

    def draft(self, rank: int, replica: int, shard: int, num_tokens: int) -> float:
        return self.draft_s

    def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
        return self.message_s

    slot_s = post_s = 0.0


def tokens_per_pass_time(schedule: Schedule, costs: EvenCosts, acceptance: float, num_tokens: int) -> float:
    timeline = Simulator(schedule, costs, independent(acceptance, seed=5)).run(1, 1 + num_tokens)
    return num_tokens / timeline.verdicts[-1][0]


def pearl(num_stages: int, ranks: tuple[int, ...], interval: int, gamma: int) -> Schedule:
    replicas = tuple((Shard(rank, 0, 2),) for rank in ranks)
    return speculative(Placement("", (1,) * num_stages, replicas, 1, interval, gamma, "ship"), gamma)


def closed_form(alpha: float, gamma: int, num_stages: int, interval: int) -> float:
    """S of DESIGN section 4, per T, for even entries; g tokens per interval."""
    return 1 / (1 - alpha) / (1 + interval / num_stages * alpha / (1 - alpha**gamma))


def test_plain_decoding_gives_one_token_a_pass() -> None:
    assert tokens_per_pass_time(plain(4), EvenCosts(4, 8), 0.5, 50) == pytest.approx(1.0)


@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.9])
@pytest.mark.parametrize(("ranks", "interval", "gamma"), [((4,), 4, 8), ((3, 0), 4, 8), ((3, 0), 2, 4)])
def test_agrees_with_the_closed_form(alpha: float, ranks: tuple[int, ...], interval: int, gamma: int) -> None:
    measured = tokens_per_pass_time(pearl(4, ranks, interval, gamma), EvenCosts(4, 8), alpha, NUM_TOKENS)
    # The closed form restarts on average; 4,000 tokens of one stream leave about 3 % of noise.
    assert measured == pytest.approx(closed_form(alpha, gamma, 4, interval), rel=0.05)


def test_hop_is_as_fast_as_a_rank_of_its_own_and_single_is_not() -> None:
    speeds = {
        ranks: tokens_per_pass_time(pearl(4, ranks, 4, 8), EvenCosts(4, 8), 0.9, NUM_TOKENS)
        for ranks in [(4,), (3, 0), (3,)]
    }
    assert speeds[3, 0] == pytest.approx(speeds[4,], rel=0.01)
    assert 0.85 < speeds[3,] / speeds[4,] < 0.93


def test_target_passes_never_wait_for_a_draft_pass() -> None:
    """No rank competes with itself: with everything accepted each stage works exactly in its slots."""
    timeline = Simulator(pearl(4, (3, 0), 4, 8), EvenCosts(4, 8), independent(1.0, 0)).run(1, 200)
    passes = [b for b in timeline.busy if isinstance(b.instruction, ForwardTarget)]
    for busy in passes:
        assert (busy.start - busy.rank / 4) % 1.0 == pytest.approx(0.0, abs=1e-9)
    drafts = [b for b in timeline.busy if isinstance(b.instruction, Draft)]
    by_rank = sorted((b.rank, b.start, b.end) for b in passes + drafts)
    for (rank, _, end), (next_rank, start, _) in itertools.pairwise(by_rank):
        assert rank != next_rank or end <= start + 1e-9


def test_slow_messages_cost_what_they_take() -> None:
    fast, slow = (tokens_per_pass_time(plain(4), EvenCosts(4, 8, m), 0.5, 100) for m in (0.0, 0.01))
    # Three activations and one verdict a token.
    assert 1 / slow - 1 / fast == pytest.approx(4 * 0.01, rel=0.02)


def test_only_tokens_that_are_needed_are_waited_for() -> None:
    """With a chunk in every stage the verifier needs tokens sent three slots ago, not those sent a slot ago."""

    class SlowTokens(EvenCosts):
        def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
            return 0.4 if kind is Kind.TOKENS and dst == 3 else 0.0

    replicas = ((Shard(4, 0, 2),),)
    schedule = speculative(Placement("", (1,) * 4, replicas, 4, 1, 2, "ship"), 2)
    free, slow = (Simulator(schedule, c(4, 8), independent(1.0, 0)).run(1, 100) for c in (EvenCosts, SlowTokens))
    assert slow.duration == pytest.approx(free.duration)


def test_times_of_the_runtime_itself_count() -> None:
    class Slow(EvenCosts):
        slot_s = 0.01

    free, slow = (tokens_per_pass_time(plain(4), costs, 0.5, 100) for costs in (EvenCosts(4, 8), Slow(4, 8)))
    # Ranks that wait for a chunk have their own time meanwhile; the first stage has not.
    assert 1 / slow - 1 / free == pytest.approx(0.01, rel=0.02)


def test_idle_shares_and_events_are_those_of_the_passes() -> None:
    timeline = Simulator(plain(4), EvenCosts(4, 8), independent(0.5, 0)).run(1, 11)
    assert timeline.idle_shares() == pytest.approx([0.75] * 4)
    assert timeline.decode_tokens_per_s == pytest.approx(1.0)
    events = timeline.events()
    assert [len(of_rank) for of_rank in events] == [10] * 4
    assert events[1][2][:4] == (Activity.TARGET, 2_250_000_000, 250_000_000, "[2, 3)")
