"""What became of each pass: from verdicts written by hand, and against the counts of whole simulated requests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.fates import Fate, FateRule, with_fates
from pearl_pp.schedule.instructions import Draft, ForwardTarget, Kind, Transfer, Verify
from pearl_pp.schedule.placement import Placement, Shard
from pearl_pp.schedule.schedule import Schedule, plain, speculative
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.timeline import Timeline
from pearl_pp.simulation.verdicts import independent
from pearl_pp.telemetry import Activity, Event

# Two stages, a prompt of 4 tokens; a piece enters in slot 0, chunks in slots 1, 3, 5 and after the restart in 6 and 8.
VERDICTS = [
    Verdict(2, (7,), 1, Outcome.ACCEPTED),
    Verdict(4, (7, 7, 9), 2, Outcome.REJECTED),  # positions 5 and 6 are right, 7 is not
    Verdict(6, (7, 8), 1, Outcome.BONUS),
    Verdict(9, (7, 7), 2, Outcome.ACCEPTED, stop=2),
]
RULE = FateRule(VERDICTS, prompt_len=4, last_rank=1)


@pytest.mark.parametrize(
    ("slot", "rank", "fate"),
    [
        (0, 0, Fate.PROMPT),
        (1, 1, Fate.PROMPT),
        (1, 0, Fate.ACCEPTED),
        (2, 1, Fate.ACCEPTED),
        (3, 0, Fate.REJECTED),
        (4, 1, Fate.REJECTED),
        (4, 0, Fate.CANCELLED),  # entered in the slot of the rejection
        (5, 0, Fate.BONUS),
        (6, 1, Fate.BONUS),
        (8, 0, Fate.ACCEPTED),
        (9, 0, Fate.CANCELLED),  # the text ends
    ],
)
def test_a_target_pass_shares_the_fate_of_its_chunk(slot: int, rank: int, fate: Fate) -> None:
    assert RULE.target(slot, ForwardTarget(rank, 0, 4, 0)) is fate


@pytest.mark.parametrize(
    ("slot", "position", "fate"),
    [
        (0, 4, Fate.ACCEPTED),
        (2, 6, Fate.ACCEPTED),
        (3, 7, Fate.REJECTED),
        (4, 8, Fate.DISCARDED),
        (5, 8, Fate.ACCEPTED),
        (6, 9, Fate.DISCARDED),  # the bonus token took its place
        (7, 10, Fate.ACCEPTED),
        (9, 12, Fate.DISCARDED),
    ],
)
def test_a_draft_pass_shares_the_fate_of_its_token(slot: int, position: int, fate: Fate) -> None:
    assert RULE.token(slot, position) is fate


def test_shards_share_the_fate_of_the_token_they_lead_to_and_reading_the_prompt_has_none() -> None:
    passes = [
        (0, Draft(0, 0, 0, 0, 4, False)),  # replica 0 draws position 4 with it
        (1, Draft(1, 0, 1, 0, 4, True)),
        (0, Draft(2, 1, 0, 0, 4, False)),  # replica 1 only reads the prompt
        (3, Draft(0, 0, 0, 6, 7, False)),
        (4, Draft(1, 0, 1, 6, 7, True)),
        (4, Draft(0, 0, 0, 7, 8, False)),  # the restart came before its last shard
    ]
    expected = [Fate.ACCEPTED, Fate.ACCEPTED, Fate.PROMPT, Fate.REJECTED, Fate.REJECTED, Fate.DISCARDED]
    assert RULE.drafts(passes) == expected


def test_a_change_of_the_schedule_cancels_what_is_in_flight() -> None:
    change = plain(2).as_change()
    rule = FateRule(
        [Verdict(1, (7,), 1, Outcome.ACCEPTED, change=change), Verdict(3, (7,), 1, Outcome.ACCEPTED, stop=2)], 4, 1
    )
    assert rule.target(0, ForwardTarget(0, 0, 4, 0)) is Fate.ACCEPTED
    assert rule.target(1, ForwardTarget(0, 4, 5, 0)) is Fate.CANCELLED
    assert (rule.token(1, 5), rule.token(2, 5)) == (Fate.DISCARDED, Fate.ACCEPTED)


def test_events_get_fates_chunk_numbers_and_words() -> None:
    def event(activity: Activity, slot: int, about: tuple) -> Event:
        return Event(activity, slot * 10, 5, "", slot, tuple(about))

    ranks = [
        [
            event(Activity.TARGET, 0, ForwardTarget(0, 0, 3, 0)),
            event(Activity.MOVE, 0, Transfer(Kind.ACTIVATION, 0, 1, 0, 3)),
            event(Activity.TARGET, 1, ForwardTarget(0, 3, 4, 0)),
            Event(Activity.WAIT, 0, 5, "the verdict", 1),
        ],
        [
            event(Activity.TARGET, 1, ForwardTarget(1, 0, 3, 0)),
            event(Activity.TARGET, 2, ForwardTarget(1, 3, 4, 1)),
            event(Activity.VERIFY, 2, Verify(1, 4, 1, False)),
            event(Activity.DRAFT, 0, Draft(1, 0, 0, 0, 4, True)),
        ],
    ]
    told = with_fates(ranks, VERDICTS, 4, 1)
    assert [[(e.label, e.fate, e.chunk) for e in events] for events in told] == [
        [
            ("", "prompt", 0),
            ("activation [0, 3) from rank 0 to rank 1", "", -1),
            ("", "accepted", 1),
            ("the verdict", "", -1),
        ],
        [("", "prompt", 0), ("", "accepted", 1), ("[4, 5)", "", 1), ("", "accepted", -1)],
    ]


class Costs:
    """Every stage takes 1, every draft pass half of it."""

    slot_s = post_s = 0.0

    def target(self, rank: int, num_tokens: int) -> float:
        return 1.0

    def draft(self, rank: int, replica: int, shard: int, num_tokens: int) -> float:
        return 0.5

    def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
        return 0.0


def schedule(replicas: tuple[tuple[int, ...], ...], fill: int, interval: int, gamma: int) -> Schedule:
    """Replicas by their ranks, on three stages."""
    whole = tuple(tuple(Shard(rank, i, i + 1) for i, rank in enumerate(ranks)) for ranks in replicas)
    return speculative(Placement("", (1,) * 3, whole, fill, interval, gamma, "ship"), gamma)


SCHEDULES = [
    plain(3),
    schedule(((2,), (0,)), 1, 3, 4),
    schedule(((2,), (1,)), 3, 2, 2),
    schedule(((2, 1),), 1, 3, 2),
    schedule(((3,),), 2, 1, 2),
]


def simulated(parameters: Schedule, acceptance: float, seed: int, prompt_len: int, num_tokens: int) -> Timeline:
    judge = independent(acceptance, seed)
    return Simulator(parameters, Costs(), judge).run(prompt_len, prompt_len + num_tokens, keeps_events=True)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SCHEDULES),
    st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    st.integers(0, 1000),
    st.integers(1, 9),
    st.integers(1, 40),
)
def test_fates_add_up_to_the_counts_of_the_request(
    parameters: Schedule, acceptance: float, seed: int, prompt_len: int, num_tokens: int
) -> None:
    timeline = simulated(parameters, acceptance, seed, prompt_len, num_tokens)
    verdicts = [verdict for _, verdict in timeline.verdicts]
    events = timeline.events()
    drawn = Counter(
        event.fate
        for of_rank in events
        for event in of_rank
        if event.activity is Activity.DRAFT and Draft(*event.about).samples
    )
    num_accepted = sum(verdict.num_accepted for verdict in verdicts)
    num_rejected = sum(verdict.outcome is Outcome.REJECTED for verdict in verdicts)
    assert drawn[Fate.ACCEPTED] == num_accepted
    assert drawn[Fate.REJECTED] == num_rejected
    assert drawn.total() == timeline.generator.num_draft_tokens
    last = events[parameters.last_rank]
    judged = [e.fate for e in last if e.activity is Activity.TARGET and e.fate not in (Fate.PROMPT, Fate.CANCELLED)]
    assert Counter(judged) == Counter(Fate[verdict.outcome.name] for verdict in verdicts)
    verified = [event.chunk for event in last if event.activity is Activity.VERIFY]
    passed = [e.chunk for e in sorted(last, key=lambda e: e.slot) if e.fate in judged and e.activity is Activity.TARGET]
    assert verified == passed


@pytest.mark.parametrize("parameters", SCHEDULES)
def test_a_chunk_has_one_fate_in_all_its_stages(parameters: Schedule) -> None:
    for of_chunk in by_chunk(simulated(parameters, 0.7, 3, 5, 60)).values():
        assert len({(event.fate, event.label) for event in of_chunk}) == 1


def by_chunk(timeline: Timeline) -> dict[int, list[Event]]:
    chunks: dict[int, list[Event]] = {}
    for of_rank in timeline.events():
        for event in of_rank:
            if event.activity is Activity.TARGET:
                chunks.setdefault(event.chunk, []).append(event)
    return chunks
