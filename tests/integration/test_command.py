"""The commands as users type them, in processes of their own: output, record, exit codes, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pearl_pp import builtin
from tests.integration.commands import Finished, pearl_pp_run, torchrun
from tests.pairs import oracle, reference
from tests.unit.runtime.word_models import NUM_WORDS, WORDS, save_with_words, word_tokenizer

NUM_TOKENS = 12

# Keys and metrics of DESIGN section 9, by name.
RECORD_KEYS = {"requests", "config", "plan", "versions", "totals", "mode"}
REQUEST_KEYS = {"prompt", "prompt_token_ids", "token_ids", "text", "finish_reason", "error", "metrics"}
METRICS = {
    "num_output_tokens",
    "ttft_s",
    "decode_tokens_per_s",
    "num_target_passes",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_rejected_tokens",
    "num_discarded_tokens",
    "acceptance_rate",
    "mean_accepted_tokens",
    "tokens_per_target_pass",
    "per_rank",
    "handoff_bytes",
    "num_hops",
}


# -- a run in which everything is right

ASKED = [
    {"prompt": builtin.prompts()[0], "max_new_tokens": NUM_TOKENS},
    {"prompt": builtin.prompts()[3], "max_new_tokens": 2 * NUM_TOKENS},
    {"prompt": "import os", "max_new_tokens": 1},
    {"prompt": "def f(", "max_new_tokens": 0},
]


@dataclass(frozen=True)
class GoodRun:
    command: Finished
    record: dict


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> GoodRun:
    """Four ranks, the embedded pair, every option but the prompts at its default."""
    folder = tmp_path_factory.mktemp("good")
    prompts, record = folder / "prompts.jsonl", folder / "record.json"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in ASKED))
    finished = torchrun(4, "-m", "pearl_pp.run", "--prompts", str(prompts), "--json", str(record))
    assert finished.exit_code == 0, finished.stderr
    return GoodRun(finished, json.loads(record.read_text()))


@pytest.mark.case("P6")
def test_a_good_run_says_nothing_on_stderr_and_everything_once(good_run: GoodRun) -> None:
    assert good_run.command.stderr == ""
    stdout = good_run.command.stdout
    for request in good_run.record["requests"][:2]:
        longest = max(request["text"].splitlines(), key=len)
        assert len(longest) > 8
        assert stdout.count(longest) == 1
    for once in ("strategy  pearl", "memory  ", "options: ", "TTFT s", "[1/4]", "[4/4]"):
        assert stdout.count(once) == 1
    assert "nan" not in stdout.lower()


@pytest.mark.case("U2")
def test_the_effective_options_are_in_the_record_and_what_was_changed_is_printed(good_run: GoodRun) -> None:
    config = good_run.record["config"]
    assert (config["strategy"], config["placement"], config["max_new_tokens"]) == ("pearl", "auto", 128)
    line = next(line for line in good_run.command.stdout.splitlines() if line.startswith("options: "))
    assert config["prompts"] in line
    assert config["json"] in line
    assert "strategy" not in line


def test_the_text_is_what_one_process_generates(good_run: GoodRun) -> None:
    eos = reference(builtin.TARGET_DIR).generation_config.eos_token_id
    for asked, request in zip(ASKED, good_run.record["requests"], strict=True):
        assert request["prompt"] == asked["prompt"]
        assert request["error"] is None
        num_tokens, prompt = asked["max_new_tokens"], request["prompt_token_ids"]
        expected = oracle(builtin.TARGET_DIR, prompt, num_tokens, eos_token_id=eos) if num_tokens else []
        assert request["token_ids"] == expected
        assert request["metrics"]["num_output_tokens"] == len(expected)
        stopped = len(expected) < num_tokens or expected[-1:] == [eos]
        assert request["finish_reason"] == ("stop" if stopped else "length")


def test_the_record_has_the_documented_keys(good_run: GoodRun) -> None:
    record = good_run.record
    assert record.keys() == RECORD_KEYS
    assert record["mode"] == "real"
    assert all(request.keys() == REQUEST_KEYS for request in record["requests"])
    for metrics in [request["metrics"] for request in record["requests"]] + [record["totals"]]:
        assert metrics.keys() >= METRICS
    assert {"target", "replicas", "fill", "verify_interval", "gamma", "handoff"} <= record["plan"]["placement"].keys()
    assert {"pearl_pp", "torch", "transformers", "deepspeed"} <= record["versions"].keys()


@pytest.mark.case("E6", "U1")
def test_the_records_numbers_add_up(good_run: GoodRun) -> None:
    requests = [request["metrics"] for request in good_run.record["requests"]]
    totals = good_run.record["totals"]
    for metrics in [*requests, totals]:
        judged = metrics["num_accepted_tokens"] + metrics["num_rejected_tokens"]
        assert metrics["num_draft_tokens"] == judged + metrics["num_discarded_tokens"]
    for name in ("num_output_tokens", "num_draft_tokens", "num_target_passes", "handoff_bytes"):
        assert totals[name] == sum(metrics[name] for metrics in requests)
    one, none = requests[2], requests[3]
    assert one["decode_tokens_per_s"] is None
    assert none["ttft_s"] is none["acceptance_rate"] is None
    drafting = [rank["num_draft_passes"] > 0 for rank in totals["per_rank"]]
    assert any(drafting) and not any(drafting[1:3]), "what is loaded is on the last rank and on rank 0"
    assert len(good_run.record["plan"]["planned_bytes"]) == 4


API = """
import json, os, sys
from pearl_pp import PearlPP, Prompt, SamplingParams

asked = json.loads(sys.argv[1])
prompts = [Prompt(text=a["prompt"], params=SamplingParams(max_new_tokens=a["max_new_tokens"])) for a in asked]
engine = PearlPP()
outputs = engine.generate(prompts)
with open(os.path.join(sys.argv[2], str(engine.rank)), "w") as file:
    json.dump([[output.token_ids, output.text, output.finish_reason] for output in outputs], file)
engine.close()
"""


def test_the_python_interface_gives_the_commands_texts_on_every_rank(good_run: GoodRun, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(API)
    finished = torchrun(2, str(script), json.dumps(ASKED), str(tmp_path))
    assert finished == Finished(0, "", "")
    expected = [[r["token_ids"], r["text"], r["finish_reason"]] for r in good_run.record["requests"]]
    for rank in range(2):
        assert json.loads((tmp_path / str(rank)).read_text()) == expected


# -- some prompts cannot be answered


@pytest.mark.case("T1", "T2", "U1")
def test_prompts_that_cannot_be_answered_are_reported_and_the_others_answered(tmp_path: Path) -> None:
    prompts, record = tmp_path / "prompts.jsonl", tmp_path / "record.json"
    lines = [
        json.dumps({"prompt": ""}),
        json.dumps({"prompt": "import os"}),
        "",
        json.dumps({"prompt": "word " * 60}),
        "{not json",
        json.dumps({"messages": [{"role": "user", "content": "hello"}]}),
        json.dumps({"prompt": "def f("}),
    ]
    prompts.write_text("\n".join(lines))
    models = ("--target", str(builtin.TARGET_DIR), "--draft", str(builtin.DRAFT_DIR), "--strategy", "ar")
    options = ("--max-new-tokens", "4", "--max-model-len", "32", "--json", str(record))
    finished = pearl_pp_run(2, *models, *options, "--prompts", str(prompts))
    assert finished.exit_code == 1
    assert finished.stderr.splitlines() == finished.errors, "one line for each, and no other"
    empty, too_long, not_json, chat = finished.errors
    assert empty == "error in prompt 1: prompt '': is empty, and the tokenizer adds no token to start with"
    assert too_long.startswith("error in prompt 3: prompt of ")
    assert too_long.endswith("leaves no room in a context of 32")
    assert not_json.startswith(f"error in prompt 4: {prompts} line 5: not JSON: ")
    assert chat.startswith(f"error in prompt 5: --chat: the tokenizer of {builtin.TARGET_DIR} has no chat template")
    requests = json.loads(record.read_text())["requests"]
    assert [request["error"] is None for request in requests] == [False, True, False, False, False, True]
    for request in requests:
        if request["error"] is None:
            assert request["token_ids"] == oracle(builtin.TARGET_DIR, request["prompt_token_ids"], 4)
        else:
            assert (request["token_ids"], request["finish_reason"]) == ([], None)
    assert "the draft is not used: --strategy ar" in finished.stdout, "a draft given and not used is never silent"


def test_a_prompt_longer_than_the_context_is_a_mistake_where_it_is_the_only_one() -> None:
    finished = pearl_pp_run(1, "--max-model-len", "8", "--prompt", "word " * 30)
    assert len(finished.errors) == 1
    assert "leaves no room in a context of 8" in finished.errors[0]
    assert finished.exit_code == 2


# -- mistakes: one line for all ranks, exit code 2

Spoil = Callable[[Path, Path], tuple[int, list[str], str]]


def _no_folder(target: Path, draft: Path) -> tuple[int, list[str], str]:
    missing = target / "nowhere"
    return 2, ["--target", str(missing), "--draft", str(draft)], f"--target {missing}: no such folder"


def _no_config(target: Path, draft: Path) -> tuple[int, list[str], str]:
    (draft / "config.json").unlink()
    return 2, ["--target", str(target), "--draft", str(draft)], f"--draft {draft}: no config.json in this folder"


def _lacks_a_tensor(target: Path, draft: Path) -> tuple[int, list[str], str]:
    file, name = target / "model.safetensors", "model.layers.1.self_attn.q_proj.weight"
    save_file({key: tensor for key, tensor in load_file(file).items() if key != name}, file, {"format": "pt"})
    expected = f"--target {target}: tensors missing from the checkpoint: {name}"
    return 2, ["--target", str(target), "--draft", str(draft)], expected


def _other_tokenizer(target: Path, draft: Path) -> tuple[int, list[str], str]:
    word_tokenizer((*WORDS[:4], WORDS[5], WORDS[4], *WORDS[6:])).save_pretrained(draft)
    shown = "ids 4 ('w4' / 'w5'), 5 ('w5' / 'w4') differ"
    reason = f"its tokenizer ({NUM_WORDS} tokens) is not the target's ({NUM_WORDS}): {shown}"
    return 2, ["--target", str(target), "--draft", str(draft)], f"--draft {draft}: {reason}"


def _more_stages_than_layers(target: Path, draft: Path) -> tuple[int, list[str], str]:
    reason = "the target has 2 layers, too few for 3 pipeline stages; start fewer ranks"
    return 3, ["--target", str(target), "--draft", str(draft)], f"--nproc-per-node 3: {reason}"


def _fill_beyond_the_stages(target: Path, draft: Path) -> tuple[int, list[str], str]:
    return 2, ["--fill", "3"], "--fill 3: must be between 1 and the number of stages, 2"


@pytest.mark.parametrize(
    "spoil",
    [
        _no_folder,
        _no_config,
        _lacks_a_tensor,
        pytest.param(_other_tokenizer, marks=pytest.mark.case("V4")),
        pytest.param(_more_stages_than_layers, marks=pytest.mark.case("P5")),
        _fill_beyond_the_stages,
    ],
)
def test_a_mistake_in_models_or_ranks_is_one_line_and_exit_code_2(spoil: Spoil, tmp_path: Path) -> None:
    target, draft = (save_with_words(tmp_path / name, word_tokenizer()) for name in ("target", "draft"))
    num_ranks, options, expected = spoil(target, draft)
    finished = pearl_pp_run(num_ranks, *options, "--prompt", "w4")
    assert (finished.exit_code, finished.stdout) == (2, "")
    assert finished.stderr == f"error: {expected}\n"


@pytest.mark.case("U2")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--gama", "3"), "--gama: no such option; did you mean --gamma?"),
        (("--top-p", "1.5"), "--top-p 1.5: "),
        (("--gamma", "0"), "--gamma 0: "),
        (("--placement", "hopp"), "--placement hopp: "),
    ],
)
def test_a_mistake_in_an_option_starts_no_rank(options: tuple[str, ...], expected: str) -> None:
    finished = pearl_pp_run(4, *options)
    assert (finished.exit_code, finished.stdout) == (2, "")
    assert finished.stderr.startswith(f"error: {expected}")
    assert finished.stderr.count("\n") == 1


@pytest.mark.case("U2")
def test_under_torchrun_a_misspelt_option_is_shown_once_for_all_ranks() -> None:
    finished = torchrun(4, "-m", "pearl_pp.run", "--gama", "3")
    assert finished.exit_code != 0, "torchrun has exit codes of its own"
    assert finished.errors == ["error: --gama: no such option; did you mean --gamma?"]
