"""What shows that an option of a run is at work, one check for each."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import dynamic_module_utils

from pearl_pp import run
from pearl_pp.config import RunConfig
from pearl_pp.console.prompts import load_prompts
from pearl_pp.errors import UserError
from pearl_pp.runtime import engine
from pearl_pp.runtime.devices import Device
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.memory import memory_of
from pearl_pp.runtime.simulated import SimulatedRequest, simulate
from pearl_pp.stages.source import open_model
from pearl_pp.transport.torch_distributed import pick_device
from tests.inprocess import Cluster
from tests.integration.conftest import ClusterOf, PairOf
from tests.pairs import EOS
from tests.unit.simulation.machines import save_profile

CPU = torch.device("cpu")
PROMPT = [3, 14, 15, 92, 65]
NUM_TOKENS = 24
HOT = {"temperature": 50.0, "seed": 1}  # nearly uniform: the end-of-sequence token comes up soon


@dataclass(frozen=True)
class Bench:
    """What a check needs to see an option at work."""

    folder: Path
    pair_of: PairOf
    cluster_of: ClusterOf

    def ids(self, num_tokens: int = NUM_TOKENS, **params: Any) -> list[int]:
        """A tiny pair's answer, sampled as `params` say, past the end-of-sequence token."""
        return self.answer(max_new_tokens=num_tokens, ignore_eos=True, **params).ids

    def answer(self, **params: Any) -> Any:
        return self.cluster_of("noisy", 2, placement="hop", gamma=3).run(PROMPT, **params)

    def simulated(self, prompt_len: int = 8, **options: Any) -> SimulatedRequest:
        """On four ranks whose links take time."""
        profile = save_profile(self.folder, link={"latency_us": 500, "bandwidth_gb_s": 0.01})
        given = {"placement": "hop", "max_new_tokens": 40, "seed": 2} | options
        return simulate(RunConfig(emulate=profile, **given), 4, prompt_len)

    def run(self, *arguments: str) -> tuple[int, str]:
        """The main job on one rank, with the embedded pair: its exit code and what it prints."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = run.main(["--strategy", "ar", "--max-new-tokens", "2", "--prompt", "import os", *arguments])
        return code, printed.getvalue()


def differ(first: object, second: object) -> None:
    assert first != second


def temperature(bench: Bench) -> None:
    differ(bench.ids(seed=1, temperature=2.0), bench.ids(seed=1))


def only_the_likeliest(name: str, value: float) -> Callable[[Bench], None]:
    """At its extreme the option leaves one token to draw from: greedy text at any temperature."""

    def check(bench: Bench) -> None:
        sampled = {"temperature": 2.0, "seed": 1}
        assert bench.ids(**sampled, **{name: value}) == bench.ids() != bench.ids(**sampled)

    return check


def repetition_penalty(bench: Bench) -> None:
    repeated = bench.ids(64)
    penalised = bench.ids(64, repetition_penalty=50.0)
    assert len(set(penalised)) > len(set(repeated))


def seed(bench: Bench) -> None:
    differ(bench.ids(temperature=2.0, seed=1), bench.ids(temperature=2.0, seed=2))


def max_new_tokens(bench: Bench) -> None:
    assert [len(bench.ids(number)) for number in (1, 7)] == [1, 7]


def ignore_eos(bench: Bench) -> None:
    ended = bench.answer(**HOT, max_new_tokens=600).ids
    assert ended[-1] == EOS and len(ended) < 600
    assert len(bench.answer(**HOT, max_new_tokens=600, ignore_eos=True).ids) == 600


def min_new_tokens(bench: Bench) -> None:
    ended = bench.answer(**HOT, max_new_tokens=600).ids
    assert len(bench.answer(**HOT, max_new_tokens=600, min_new_tokens=len(ended) + 1).ids) > len(ended)


def stop(bench: Bench) -> None:
    pair = Cluster(None, None, 2, strategy="ar")
    text = pair.run("import os", max_new_tokens=12).text
    assert text[4] not in text[:4]
    assert pair.run("import os", max_new_tokens=12, stop=(text[4],)).text == text[:4]


def logprobs(bench: Bench) -> None:
    assert bench.answer(max_new_tokens=3).logprobs is None
    assert len(bench.answer(max_new_tokens=3, logprobs=True).logprobs) == 3


def target(bench: Bench) -> None:
    plain = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    draft = bench.pair_of("tiny")[1]
    other = Cluster(draft, draft, 2, placement="hop", gamma=3).run(PROMPT, **plain)
    differ(bench.answer(**plain).ids, other.ids)


def draft(bench: Bench) -> None:
    """Another draft, another acceptance; the text stays."""
    answers = [bench.cluster_of(name, 2, placement="hop", gamma=3).run(PROMPT, ignore_eos=True, max_new_tokens=16)
               for name in ("self", "anti")]  # fmt: skip
    assert [answer.metrics["acceptance_rate"] for answer in answers] == [1.0, 0.0]
    assert answers[0].ids == answers[1].ids


def trust_remote_code(bench: Bench) -> None:
    """Without it a folder with code of its own is refused."""
    folder = bench.folder / "odd"
    folder.mkdir()
    (folder / "odd.py").write_text("from transformers import LlamaConfig\n\n\nclass Odd(LlamaConfig):\n    pass\n")
    content = json.loads((bench.pair_of("noisy")[0] / "config.json").read_text())
    content |= {"model_type": "odd", "auto_map": {"AutoConfig": "odd.Odd"}}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="--trust-remote-code"):
        open_model(folder, "--target")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as later:  # the code runs; it brings no model
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(bench.folder / "modules"))
        open_model(folder, "--target", trust_remote_code=True).check()
    assert "--trust-remote-code" not in str(later.value)


def emulate(bench: Bench) -> None:
    profile = save_profile(bench.folder)
    emulated, real = (open_pair(RunConfig(emulate=path), 2, CPU) for path in (profile, None))
    differ(emulated.target.num_layers, real.target.num_layers)


def prompt(bench: Bench) -> None:
    given = load_prompts(RunConfig(prompt=("a", "b")))
    assert [prompt.text for prompt in given] == ["a", "b"] != [prompt.text for prompt in load_prompts(RunConfig())]


def prompts(bench: Bench) -> None:
    file = bench.folder / "prompts.txt"
    file.write_text("one\ntwo\n")
    assert [prompt.text for prompt in load_prompts(RunConfig(prompts=str(file)))] == ["one", "two"]


def chat(bench: Bench) -> None:
    """The embedded pair has no template, which is then said."""
    assert [bench.run(*arguments)[0] for arguments in ((), ("--chat",))] == [0, UserError.exit_code]


def changes_the_schedule(*values: Any, **others: Any) -> Callable[[str], Callable[[Bench], None]]:
    """The option's values give different schedules, and requests of different lengths."""

    def of(name: str) -> Callable[[Bench], None]:
        def check(bench: Bench) -> None:
            results = [bench.simulated(**others, **{name: value}) for value in values]
            assert len({result.schedule for result in results}) == len(values)
            assert len({result.timeline.duration for result in results}) == len(values)

        return check

    return of


def placement(bench: Bench) -> None:
    names = ("dedicated", "single", "hop", "pipelined", "sharded")
    assert len({bench.simulated(placement=name, gamma=4).pair.placement for name in names}) == len(names)
    file = bench.folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"target": [5, 1, 1, 1], "replicas": [[{"rank": 2, "layers": [0, 4]}]]}))
    assert bench.simulated(placement=str(file)).pair.placement.target == (5, 1, 1, 1)


def layer_split(bench: Bench) -> None:
    """Several chunks in flight wait for the slowest stage."""
    splits = ((2, 2, 2, 2), (5, 1, 1, 1))
    even, uneven = (bench.simulated(placement="pipelined", layer_split=split) for split in splits)
    assert uneven.pair.placement.target == (5, 1, 1, 1)
    assert uneven.timeline.duration > even.timeline.duration


def handoff(bench: Bench) -> None:
    moved = {way: bench.simulated(handoff=way).metrics()["handoff_bytes"] for way in ("ship", "catchup")}
    assert moved["ship"] > moved["catchup"] == 0


def prefill_piece(bench: Bench) -> None:
    differ(*(bench.simulated(2048, prefill_piece=piece).metrics()["ttft_s"] for piece in (2048, 256)))


def verify(bench: Bench) -> None:
    """The same seed draws another text; `coupled` draws that of the target alone."""
    sampled = {"temperature": 2.0, "seed": 3, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    coupled = bench.cluster_of("noisy", 2, placement="hop", gamma=3, verify="coupled").run(PROMPT, **sampled)
    differ(coupled.ids, bench.answer(**sampled).ids)


def max_model_len(bench: Bench) -> None:
    short = bench.cluster_of("noisy", 2, placement="hop", gamma=3, max_model_len=12)
    assert len(short.run(PROMPT, max_new_tokens=NUM_TOKENS, ignore_eos=True).ids) == 12 - len(PROMPT)


def dtype(bench: Bench) -> None:
    half, auto = (open_pair(RunConfig(dtype=name), 2, CPU).dtype for name in ("bfloat16", "auto"))
    assert (half, auto) == (torch.bfloat16, torch.float32)


def device(bench: Bench) -> None:
    assert pick_device(RunConfig(device="cpu").run_device) == CPU
    config = RunConfig(device="cuda")
    if torch.cuda.is_available():
        assert pick_device(config.run_device).type == "cuda"
    else:
        with pytest.raises(UserError, match="--device cuda"):
            pick_device(config.run_device)


def limits(**options: Any) -> list[float]:
    """Bytes that each of two ranks with a card may use."""
    config = RunConfig(**options)
    cards = [Device(card, total_bytes=10**9, free_bytes=10**9) for card in ("a", "b")]
    return [share.num_bytes for share in memory_of(config, open_pair(config, 2, CPU), cards).shares]


def memory_gb(bench: Bench) -> None:
    assert limits(memory_gb=(0.5, 2)) == [0.5e9, 2e9] != limits()


def gpu_memory_utilization(bench: Bench) -> None:
    assert limits(gpu_memory_utilization=0.5) == [0.5e9] * 2 != limits()


def timeout(bench: Bench) -> None:
    """It is what the transport is made with: every wait has it."""
    seen = []

    class Enough(Exception):
        pass

    def connect(_: str, timeout_s: float) -> None:
        seen.append(timeout_s)
        raise Enough

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "connect", connect)
        for options in ({}, {"timeout": 7.0}):
            with pytest.raises(Enough):
                engine.PearlPP(RunConfig(**options))
    assert seen == [120.0, 7.0]


def writes_a_file(name: str) -> Callable[[Bench], None]:
    def check(bench: Bench) -> None:
        file = bench.folder / "written.json"
        assert bench.run(f"--{name}", str(file))[0] == 0
        assert json.loads(file.read_text())

    return check


def quiet(bench: Bench) -> None:
    shown = [bench.run(*arguments)[1] for arguments in ((), ("--quiet",))]
    assert len(shown[1].splitlines()) < len(shown[0].splitlines())
    assert shown[1].strip() in shown[0]
