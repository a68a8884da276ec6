"""The slot generator: a pure function of (schedule, verdicts so far) to the instructions of each slot.

Every rank runs its own copy on the same verdicts, so all know who sends what to whom next. No torch, no clock,
no network.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from pearl_pp.messages import Verdict
from pearl_pp.schedule.plan import SlotPlan
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.schedule.window_generator import WindowGenerator
from pearl_pp.schedule.windows import WindowSlot, WindowStart

# Windows that start alike are generated once. The end of the text is seen from so many positions away; a window
# that reaches further is generated for itself: with acceptance .9 that is one in 150 (.9**48 = .006).
HORIZON = 48
# A window takes some kilobytes. A long text has a few dozen; short ones that all differ would fill any number.
MAX_WINDOWS = 128


class _Window:
    """The slots of one window as far as they have been asked for."""

    def __init__(self, schedule: Schedule, start: WindowStart) -> None:
        self._generator = WindowGenerator(schedule, start)
        self._slots: list[WindowSlot] = []
        self._lock = threading.Lock()

    def slot(self, number: int) -> WindowSlot:
        if len(self._slots) <= number:
            with self._lock:
                self._generate(number)
        return self._slots[number]

    def _generate(self, number: int) -> None:
        while len(self._slots) <= number:
            if self._slots and self._slots[-1].has_verdict:  # going on means that it accepted
                self._generator.accept()
            self._slots.append(self._generator.next_slot())


class _WindowCache:
    """Windows already generated, for all requests of the process; its ranks may be threads."""

    def __init__(self) -> None:
        self._windows: OrderedDict[tuple[Schedule, WindowStart], _Window] = OrderedDict()
        self._lock = threading.Lock()

    def window(self, schedule: Schedule, start: WindowStart) -> _Window:
        key = (schedule, start)
        with self._lock:
            if key in self._windows:
                self._windows.move_to_end(key)
            else:
                self._windows[key] = _Window(schedule, start)
                if len(self._windows) > MAX_WINDOWS:
                    self._windows.popitem(last=False)
            return self._windows[key]


_WINDOWS = _WindowCache()


@dataclass
class TextState:
    """How far a request has come: `committed` of at most `total_len` tokens; `stop` is a `StopReason` or 0."""

    committed: int
    total_len: int
    stop: int = 0


class SlotGenerator:
    """Generates the slots of one request.

    Args:
        schedule: the parameters; every rank has the same.
        prompt_len: tokens of the prompt, at least 1.
        total_len: length at which generation ends, prompt included.
        draft_end: no position at or beyond it is drafted.

    `next_slot()` gives the instructions of the next slot; after a slot with a verdict, `apply(verdict)` is due.
    """

    def __init__(self, schedule: Schedule, prompt_len: int, total_len: int, draft_end: int) -> None:
        if not 1 <= prompt_len < total_len:
            raise ValueError(f"prompt_len {prompt_len} must be in [1, total_len {total_len})")
        self.schedule = schedule
        self.state = TextState(prompt_len, total_len)
        self.kv_lengths = [[0] * len(replica) for replica in schedule.replicas]
        self.num_verdicts = 0
        self.num_draft_tokens = 0
        self.num_hops = 0
        self._prompt_len = prompt_len
        self._draft_end = min(draft_end, total_len)
        self._num_slots = 0
        self._awaits_verdict = False
        self._ready = [False] * len(schedule.replicas)
        self._replica = -1
        self._begin_window(num_unfed=prompt_len)

    @property
    def finished(self) -> bool:
        return self.state.stop != 0

    def next_slot(self) -> SlotPlan:
        """Instructions of the next slot.

        Raises:
            RuntimeError: when the verdict of the slot before has not been applied.
        """
        if self._awaits_verdict:
            raise RuntimeError("a verdict is due before the next slot")
        slot = self._window.slot(self._number)
        if self._horizon is not None and slot.reach >= self._horizon:
            self._leave_cache()
            slot = self._window.slot(self._number)
        plan = SlotPlan(self._num_slots, self._number, self._base, slot)
        self._num_slots += 1
        self._number += 1
        self._account(slot)
        return plan

    def apply(self, verdict: Verdict) -> None:
        """Takes the verdict of the slot just generated; it holds from the next slot on."""
        if not self._awaits_verdict:
            raise RuntimeError("no verdict is due")
        self._awaits_verdict = False
        self.num_verdicts += 1
        self.state.committed += len(verdict.token_ids)
        self.state.stop = verdict.stop
        if verdict.change is not None:
            self.schedule = self.schedule.changed(verdict.change)
        if self.finished:
            return
        if verdict.restarts:
            kept = self.state.committed - 1
            self.kv_lengths = [[min(length, kept) for length in lengths] for lengths in self.kv_lengths]
            self._begin_window(num_unfed=1)

    def _account(self, slot: WindowSlot) -> None:
        self._awaits_verdict = slot.has_verdict
        self.num_draft_tokens += slot.num_draft_tokens
        self.num_hops += slot.num_hops
        self._replica = slot.replica
        for number in self._in_use:
            self.kv_lengths[number] = [self._base + length for length in slot.kv_lengths[number]]
            self._ready[number] = slot.ready[number]

    def _begin_window(self, num_unfed: int) -> None:
        """The next slot is slot 0; what was scheduled beyond it is dropped by every rank alike."""
        base = self._base = self.state.committed
        self._number = 0
        remaining = self.state.total_len - base
        in_use = self._in_use = self.schedule.in_use
        ready = tuple(is_ready or number not in in_use for number, is_ready in enumerate(self._ready))
        self._start = WindowStart(
            num_unfed,
            tuple(
                tuple(length - base if number in in_use else -1 for length in lengths)
                for number, lengths in enumerate(self.kv_lengths)
            ),
            ready,
            self._replica,
            None if all(ready) else (-base, self._prompt_len - base),
            remaining,
            max(0, self._draft_end - base),
            frozenset(n - self.num_verdicts for n in self.schedule.report_at if n >= self.num_verdicts),
        )
        if num_unfed > 1 or self._start.reports:  # comes once
            self._horizon = None
            self._window = _Window(self.schedule, self._start)
            return
        near = self._start._replace(remaining=min(remaining, HORIZON), draftable=min(self._start.draftable, HORIZON))
        self._horizon = None if near == self._start else HORIZON
        self._window = _WINDOWS.window(self.schedule, near)

    def _leave_cache(self) -> None:
        """Generates this window for itself, up to where it is: the end of the text is in sight."""
        self._horizon = None
        self._window = _Window(self.schedule, self._start)
        if self._number:
            self._window.slot(self._number - 1)
