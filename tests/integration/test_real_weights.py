"""A real model, chat template and all: `python -m pytest -m real_weights` (needs the extra `real-weights`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.commands import command, pearl_pp_run

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(900)]

QUESTION = "What is gravity? Explain in two sentences."
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def folders() -> tuple[Path, Path]:
    """Target and draft in the user's cache folder, where the next run finds them again."""
    made = command("pearl_pp.cli", "get-example", timeout_s=600)
    assert (made.exit_code, made.stderr) == (0, "")
    target, draft, run = made.stdout.splitlines()
    paths = Path(target.rpartition(": ")[2]), Path(draft.rpartition(": ")[2])
    assert run.startswith(f"pearl-pp run -n 4 --target {paths[0]} --draft {paths[1]} --chat ")
    return paths


@pytest.fixture(scope="module")
def expected(folders: tuple[Path, Path]) -> tuple[list[int], list[int], str]:
    """Prompt ids, the greedy ids of the whole model in one process, and their text."""
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    messages = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    model = AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)
    ids = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=NUM_TOKENS,
        eos_token_id=None,
    )[0, len(prompt) :].tolist()  # fmt: skip
    return prompt, ids, tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    "options",
    [("--placement", "hop"), ("--placement", "pipelined"), ("--strategy", "sd", "--gamma", "2")],
    ids=" ".join,
)
def test_four_ranks_answer_as_one_process_does(
    options: tuple[str, ...], folders: tuple[Path, Path], expected: tuple[list[int], list[int], str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    finished = pearl_pp_run(
        4, "--target", str(folders[0]), "--draft", str(folders[1]), "--chat", "--prompt", QUESTION, "--ignore-eos",
        "--max-new-tokens", str(NUM_TOKENS), "--dtype", "float32", "--json", str(out), *options, timeout_s=400,
    )  # fmt: skip
    assert (finished.exit_code, finished.errors) == (0, [])
    (request,) = json.loads(out.read_text())["requests"]
    assert (request["prompt_token_ids"], request["token_ids"], request["text"]) == expected
    assert request["metrics"]["num_accepted_tokens"] > 0 and request["metrics"]["num_rejected_tokens"] > 0


def test_an_answer_ends_where_the_chat_template_ends_it(
    folders: tuple[Path, Path], expected: tuple[list[int], list[int], str], tmp_path: Path
) -> None:
    """The turn's end is the end-of-sequence token; it is returned and not shown."""
    end = expected[1].index(2)
    out, prompts = tmp_path / "out.json", tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"messages": [{"role": "user", "content": QUESTION}]}))
    finished = pearl_pp_run(
        2, "--target", str(folders[0]), "--draft", str(folders[1]), "--prompts", str(prompts), "--quiet",
        "--max-new-tokens", str(NUM_TOKENS), "--dtype", "float32", "--json", str(out), timeout_s=400,
    )  # fmt: skip
    assert (finished.exit_code, finished.stderr) == (0, "")
    (request,) = json.loads(out.read_text())["requests"]
    assert request["token_ids"] == expected[1][: end + 1] and request["finish_reason"] == "stop"
    assert finished.stdout == request["text"] + "\n"
    assert expected[2].startswith(request["text"])
