"""Evaluation sets from their JSONL files: what is sampled, how it is asked, and one line for what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pearl_pp import builtin
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.experiments.retained.workloads import (
    SETS,
    WORKLOADS,
    Item,
    load_workload,
    prompt_for,
    wants_chat,
)

LANGUAGES = ("bengali", "german", "english", "spanish", "french", "japanese", "russian", "swahili", "telugu", "thai",
             "chinese")  # fmt: skip
PARAMS = SamplingParams(max_new_tokens=7, seed=3)


def humaneval(number: int) -> dict[str, Any]:
    return {"task_id": f"HumanEval/{number}", "prompt": f"\n\ndef f{number}():\n", "entry_point": "f", "test": "pass"}


def gsm8k(number: int) -> dict[str, Any]:
    return {"question": f"How many are {number}?", "answer": f"It is <<{number}=1>>{number}.\n#### {number}"}


def mgsm(number: int) -> dict[str, Any]:
    language = LANGUAGES[number // 10 % len(LANGUAGES)]
    return {"question_id": number, "question": f"{language} {number}", "category": language, "answer": "1"}


def mt_bench(number: int) -> dict[str, Any]:
    return {"question_id": 81 + number, "category": f"c{number // 10}", "turns": [f"first {number}", f"then {number}"]}


ROWS = {"humaneval": humaneval, "gsm8k": gsm8k, "mgsm": mgsm, "mt_bench": mt_bench}
FULL = {"humaneval": 164, "gsm8k": 200, "mgsm": 110, "mt_bench": 80}


def write(folder: Path, rows: Sequence[Mapping[str, Any] | str], name: str = "set.jsonl") -> str:
    path = folder / name
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def full(name: str, folder: Path) -> str:
    return write(folder, [ROWS[name](number) for number in range(FULL[name])])


def message(*arguments: Any, **named: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_workload(*arguments, **named)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("name", "num_prompts", "num_turns", "max_new_tokens"),
    [("humaneval", 164, 1, 1024), ("gsm8k", 100, 1, 512), ("mgsm", 100, 1, 512), ("mt_bench", 80, 2, 512)],
)
def test_the_sample_is_the_papers(
    name: str, num_prompts: int, num_turns: int, max_new_tokens: int, tmp_path: Path
) -> None:
    workload = load_workload(name, full(name, tmp_path))
    assert len(workload.items) == num_prompts
    assert {len(item.turns) for item in workload.items} == {num_turns}
    assert workload.max_new_tokens == max_new_tokens
    keys = [workload.key(item, turn) for item in workload.items for turn in range(num_turns)]
    assert len(set(keys)) == num_prompts * num_turns


def test_mgsm_is_ten_of_each_of_ten_languages(tmp_path: Path) -> None:
    workload = load_workload("mgsm", full("mgsm", tmp_path))
    languages = Counter(item.group for item in workload.items)
    assert languages == dict.fromkeys(set(LANGUAGES) - {"english"}, 10)


@pytest.mark.parametrize(("name", "num_groups"), [("mgsm", 10), ("mt_bench", 8)])
@pytest.mark.parametrize("num_prompts", [1, 5, 10, 23])
def test_a_smaller_sample_is_spread_over_the_groups(
    name: str, num_groups: int, num_prompts: int, tmp_path: Path
) -> None:
    items = load_workload(name, full(name, tmp_path), num_prompts).items
    assert len(items) == num_prompts
    sizes = Counter(item.group for item in items).values()
    assert len(sizes) == min(num_prompts, num_groups)
    assert max(sizes) - min(sizes) <= 1


def test_a_smaller_sample_of_a_set_without_groups_is_its_beginning(tmp_path: Path) -> None:
    items = load_workload("humaneval", full("humaneval", tmp_path), 3).items
    assert [item.id for item in items] == ["0", "1", "2"]


def test_prompts_are_named_by_set_item_and_turn(tmp_path: Path) -> None:
    chats = load_workload("mt_bench", full("mt_bench", tmp_path), 1)
    assert [chats.key(chats.items[0], turn) for turn in (0, 1)] == ["mt_bench/81/1", "mt_bench/81/2"]
    code = load_workload("humaneval", full("humaneval", tmp_path), 1)
    assert code.key(code.items[0], 0) == "humaneval/0"


def test_code_is_gone_on_with_as_it_is(tmp_path: Path) -> None:
    item = load_workload("humaneval", full("humaneval", tmp_path), 1).items[0]
    prompt = prompt_for(item, 0, [], False, PARAMS)
    assert (prompt.text, prompt.messages, prompt.chat, prompt.params) == ("def f0():", None, False, PARAMS)


def test_a_base_model_gets_worked_examples_that_are_not_asked(tmp_path: Path) -> None:
    workload = load_workload("gsm8k", full("gsm8k", tmp_path), 2)
    text = prompt_for(workload.items[1], 0, [], False, PARAMS).text
    assert text is not None
    questions = [part.split("?")[0] for part in text.split("Question: How many are ")[1:]]
    assert questions == [str(number) for number in (*range(100, 108), 1)]
    assert "Answer: It is 100. The answer is 100.\n\nQuestion: " in text  # without the calculator's marks
    assert text.endswith("Question: How many are 1?\n\nAnswer:")


def test_worked_examples_stay_the_same_for_a_smaller_sample_and_are_never_asked_in_a_larger_one(tmp_path: Path) -> None:
    path = full("gsm8k", tmp_path)
    assert load_workload("gsm8k", path, 1).items[0].intro == load_workload("gsm8k", path).items[0].intro
    assert "How many are 150?" in load_workload("gsm8k", path, 150).items[0].intro
    assert load_workload("gsm8k", path, 200).items[0].intro == ""


def test_a_chat_model_gets_messages_and_no_examples(tmp_path: Path) -> None:
    item = load_workload("gsm8k", full("gsm8k", tmp_path), 1).items[0]
    prompt = prompt_for(item, 0, [], True, PARAMS)
    assert prompt.messages == ({"role": "user", "content": "How many are 0?"},)
    assert (prompt.text, prompt.chat, prompt.params) == (None, True, PARAMS)
    prompt.check()


ITEM = Item("81", ("first", "then"), labels=("Question: ", "Answer:"))


def test_a_second_turn_follows_the_first_answer() -> None:
    chat = prompt_for(ITEM, 1, [" said \n"], True, PARAMS)
    assert chat.messages == (
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "said"},
        {"role": "user", "content": "then"},
    )
    plain = prompt_for(ITEM, 1, [" said \n"], False, PARAMS)
    assert plain.text == "Question: first\n\nAnswer: said\n\nQuestion: then\n\nAnswer:"


def test_a_first_turn_knows_nothing_of_the_second() -> None:
    assert prompt_for(ITEM, 0, [], False, PARAMS).text == "Question: first\n\nAnswer:"
    assert prompt_for(ITEM, 0, ["said"], True, PARAMS).messages == ({"role": "user", "content": "first"},)


def test_the_built_in_prompts_are_asked_as_they_are() -> None:
    workload = load_workload("builtin")
    texts = [prompt_for(item, 0, [], False, PARAMS).text for item in workload.items]
    assert texts == builtin.prompts()
    assert load_workload("builtin", num_prompts=2).items == workload.items[:2]


def test_tokens_are_prompts_of_a_length_that_differ_in_their_seed() -> None:
    workload = load_workload("tokens", num_prompts=3, prompt_len=5)
    prompts = [prompt_for(item, 0, [], False, PARAMS) for item in workload.items]
    assert [prompt.token_ids for prompt in prompts] == [(0,) * 5] * 3
    assert [prompt.params.seed for prompt in prompts] == [0, 1, 2]
    assert {prompt.params.max_new_tokens for prompt in prompts} == {7}
    assert workload.key(workload.items[2], 0) == "tokens/2"


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON: "),
        ("[1]", "must be an object"),
        ("{}", "needs "),
        ("[" * 100_000, "is nested too deeply"),
    ],
)
def test_a_malformed_line_is_named(name: str, line: str, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path, [ROWS[name](0), "", line])
    assert f"workload {name} {path}: line 3: {reason}" in message(name, path)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("humaneval", {"prompt": 3}, 'needs "prompt", a text'),
        ("gsm8k", {"question": " "}, 'needs "question", a text'),
        ("gsm8k", {"question": "\ud83d"}, "is not Unicode text (half a surrogate pair)"),
        ("mgsm", {"category": None}, 'needs "category", a text'),
        ("mt_bench", {"turns": "first"}, 'needs "turns", a list of texts'),
        ("mt_bench", {"turns": ["first", 2]}, 'needs "turns", a list of texts'),
        ("mt_bench", {"turns": []}, 'needs "turns", a list of texts'),
    ],
)
def test_a_line_that_lacks_something_is_named(name: str, change: dict, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path, [ROWS[name](0), json.dumps(ROWS[name](1) | change)])
    assert message(name, path) == f"workload {name} {path}: line 2: {reason}"


@pytest.mark.parametrize("name", SETS)
def test_a_file_that_cannot_be_used_is_one_line(name: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.jsonl")
    assert message(name, missing) == f"workload {name} {missing}: no such file"
    assert message(name) == f"workload {name}: needs the set's JSONL file: give file: PATH"
    empty = write(tmp_path, [""])
    assert message(name, empty) == f"workload {name} {empty}: holds no prompt"
    few = write(tmp_path, [ROWS[name](0), ROWS[name](1)])
    assert message(name, few, 3) == f"workload {name} num_prompts 3: there are 2 in {few}"
    bytes_file = tmp_path / "latin.jsonl"
    bytes_file.write_bytes(b'{"question": "\xe9"}\n')
    assert message(name, str(bytes_file)) == f"workload {name} {bytes_file}: line 1 is not UTF-8 text"


def test_an_id_is_there_once(tmp_path: Path) -> None:
    path = write(tmp_path, [mt_bench(0), mt_bench(0)])
    assert message("mt_bench", path) == f"workload mt_bench {path}: 81 is there twice"


def test_a_workload_of_another_name_is_one_line() -> None:
    assert message("humanevl") == "workload name humanevl: no such workload; did you mean humaneval?"
    assert message("zzz").endswith(f"there are {', '.join(WORKLOADS)}")
    assert message("builtin", "a.jsonl") == "workload builtin a.jsonl: is read from no file"


def test_a_chat_template_is_used_where_the_folder_has_one(tmp_path: Path) -> None:
    assert not wants_chat("auto", None)  # the embedded pair
    assert not wants_chat("auto", "synthetic:cpu_small")
    assert (wants_chat(True, None), wants_chat(False, str(tmp_path))) == (True, False)
    config = tmp_path / "tokenizer_config.json"
    for content, has_one in (("{}", False), ('{"chat_template": "{{ x }}"}', True), ("[]", False), ("{", False)):
        config.write_text(content)
        assert wants_chat("auto", str(tmp_path)) is has_one
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    assert wants_chat("auto", str(tmp_path))


def test_an_id_is_told_from_a_turn(tmp_path: Path) -> None:
    path = write(tmp_path, [mt_bench(0) | {"question_id": "81/2"}])
    assert message("mt_bench", path) == f"workload mt_bench {path}: line 1: 81/2 is no name of a question: it holds a /"


@pytest.mark.parametrize("change", [{"question_id": "\ud800"}, {"category": "\ud800"}])
def test_half_a_surrogate_pair_is_refused_wherever_it_is(tmp_path: Path, change: dict[str, str]) -> None:
    path = write(tmp_path, [json.dumps(mt_bench(0) | change)])
    assert "line 1: is not Unicode text" in message("mt_bench", path)
