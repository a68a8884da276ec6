"""An engine without models, for tests of what is around it."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_pp.config import RunConfig
from pearl_pp.runtime.metrics import empty_metrics, rates
from pearl_pp.runtime.request import Prompt, RequestOutput

PER_RANK = [{"target_s": 0.5, "draft_s": 0.25, "target_pass_ms": 3.0, "planned_bytes": 2**20, "n": 9}]


def metrics_of(num_tokens: int, *, num_draft_tokens: int = 4) -> dict[str, Any]:
    """As the engine makes them: of the drafted tokens, three in four accepted, the others rejected."""
    counts = empty_metrics() | {
        "num_output_tokens": num_tokens,
        "num_decode_tokens": max(0, num_tokens - 1),
        "ttft_s": 0.125,
        "decode_s": 0.5 if num_tokens > 1 else 0.0,
        "num_target_passes": num_tokens,
        "num_draft_tokens": num_draft_tokens,
        "num_accepted_tokens": 3 * num_draft_tokens // 4,
        "num_rejected_tokens": num_draft_tokens - 3 * num_draft_tokens // 4,
        "num_accepted_runs": num_draft_tokens // 4,
        "per_rank": PER_RANK,
    }
    return counts | rates(counts)


@dataclass
class FakeEngine:
    """Answers `<prompt>!` in two pieces; raises `fault` in place of the answer numbered `fault_at`, and
    `fault_at_close` once it is closed.
    """

    config: RunConfig
    fault: BaseException | None = None
    fault_at: int = 0
    fault_at_close: BaseException | None = None
    num_draft_tokens: int = 4
    after_each: Callable[[], None] = lambda: None
    seen: list[Prompt] = field(default_factory=list)
    closed: bool = False
    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2"})
    plan: Any = field(default_factory=lambda: SimpleNamespace(decision_lines=[], record=lambda: {"target": [1, 1]}))

    def iterate(
        self, prompts: Sequence[Prompt], on_text: Callable[[int, str], None] | None = None
    ) -> Iterator[RequestOutput]:
        self.seen = list(prompts)
        for index, prompt in enumerate(prompts):
            if self.fault is not None and index == self.fault_at:
                raise self.fault
            if prompt.error is not None:
                yield RequestOutput("", [], [], "", None, error=f"prompt: {prompt.error}")
                continue
            text = prompt.text or ""
            for piece in (text, "!"):
                if on_text is not None:
                    on_text(index, piece)
            metrics = metrics_of(len(text) + 1, num_draft_tokens=self.num_draft_tokens)
            ids = list(range(len(text) + 1))
            yield RequestOutput(text, [1], ids, text + "!", "length", metrics=metrics)
            self.after_each()

    def close(self) -> None:
        self.closed = True
        if self.fault_at_close is not None:
            raise self.fault_at_close


@dataclass
class EngineFactory:
    """What `main` gets as `build`; keeps the engine it made."""

    options: dict[str, Any] = field(default_factory=dict)
    engine: FakeEngine | None = None
    progress: Callable[[str, int, int], None] | None = None

    def __call__(
        self,
        config: RunConfig,
        on_progress: Callable[[str, int, int], None] | None,
        on_plan: Callable[[list[str]], None] | None,
    ) -> Any:
        if on_plan is not None:
            on_plan(["target: 4 stages"])
        self.progress = on_progress
        self.engine = FakeEngine(config, **self.options)
        return self.engine


@pytest.fixture
def make_factory() -> Callable[..., EngineFactory]:
    return lambda **options: EngineFactory(options)


@pytest.fixture(name="metrics_of")
def _metrics_of() -> Callable[..., dict[str, Any]]:
    return metrics_of


@pytest.fixture(autouse=True)
def _rank_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files can be made, and not put in place."""

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", no_space)
