"""Where prompts come from, and what happens to lines that are none."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pearl_pp import builtin
from pearl_pp.config import RunConfig
from pearl_pp.console.prompts import fix_seed, label, load_prompts
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.runtime.request import Prompt


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def texts(config: RunConfig) -> list[str | None]:
    return [prompt.text for prompt in load_prompts(config)]


def test_the_built_in_prompts_unless_others_are_named() -> None:
    assert texts(RunConfig()) == list(builtin.prompts())
    assert texts(RunConfig(prompt=("a",))) == ["a"]


def test_flags_first_then_the_file_each_with_the_options_of_the_run(tmp_path: Path) -> None:
    path = written(tmp_path, "p.txt", "from file\n")
    prompts = load_prompts(RunConfig(prompt=("from flag",), prompts=path, top_k=5, chat=True))
    assert [prompt.text for prompt in prompts] == ["from flag", "from file"]
    assert all(prompt.params == SamplingParams(top_k=5) and prompt.chat for prompt in prompts)


@pytest.mark.case("T2")
def test_blank_lines_are_no_prompts_but_an_empty_prompt_is_one(tmp_path: Path) -> None:
    assert texts(RunConfig(prompts=written(tmp_path, "p.txt", "one\n\n  \n two \r\n"))) == ["one", " two "]
    jsonl = written(tmp_path, "p.jsonl", '{"prompt": "one"}\n\n{"prompt": ""}\n')
    assert texts(RunConfig(prompts=jsonl)) == ["one", ""]
    assert texts(RunConfig(prompt=("",))) == [""]


def test_a_line_ends_at_a_newline_only(tmp_path: Path) -> None:
    separator = "a\u2028b\x0cc"
    assert texts(RunConfig(prompts=written(tmp_path, "p.txt", separator))) == [separator]
    line = json.dumps({"prompt": separator}, ensure_ascii=False)
    assert texts(RunConfig(prompts=written(tmp_path, "p.jsonl", "\ufeff" + line))) == [separator]


def test_a_jsonl_line_has_its_own_sampling_options(tmp_path: Path) -> None:
    lines = ['{"prompt": "a", "max_tokens": 3, "top-p": 0.5, "stop": "x"}', '{"prompt": "b"}']
    first, second = load_prompts(RunConfig(prompts=written(tmp_path, "p.jsonl", "\n".join(lines)), seed=7))
    assert first.params == SamplingParams(max_new_tokens=3, top_p=0.5, stop=("x",), seed=7)
    assert second.params == SamplingParams(seed=7)


def test_messages_are_chat(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    (prompt,) = load_prompts(RunConfig(prompts=written(tmp_path, "p.jsonl", json.dumps({"messages": messages}))))
    assert (prompt.text, prompt.messages, prompt.chat, prompt.error) == (None, tuple(messages), True, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": ', "not JSON: Expecting value at column 12"),
        ('"text"', 'must be an object such as {"prompt": "..."}'),
        ("{}", 'needs either "prompt" or "messages"'),
        (
            '{"prompt": "a", "messages": [{"role": "user", "content": ""}]}',
            'needs either "prompt" or "messages"',
        ),
        ('{"prompt": 5}', "prompt 5: must be text"),
        ('{"prompt": "\\ud800"}', "prompt: is not Unicode text (half a surrogate pair)"),
        ('{"messages": []}', "messages []: must be a list of objects"),
        ('{"messages": [{"role": "user"}]}', "messages: {'role': 'user'} needs \"role\" and \"content\""),
        ('{"prompt": "a", "top_p": 2}', "top_p 2: must be less than or equal to 1"),
        ('{"prompt": "a", "temprature": 1}', "temprature: no such option; did you mean temperature?"),
        ('{"prompt": "a", "gamma": 1}', "gamma is not a sampling option"),
        ('{"prompt": "a", "max_new_tokens": true}', "max_new_tokens True: takes a value, not true or false"),
    ],
)
def test_a_bad_line_is_that_prompts_error(line: str, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, "p.jsonl", f'{{"prompt": "before"}}\n\n{line}\n{{"prompt": "after"}}\n')
    before, bad, after = load_prompts(RunConfig(prompts=path))
    assert (before.text, before.error, after.text, after.error) == ("before", None, "after", None)
    assert bad.text is None and bad.messages is None
    assert bad.error == f"{path} line 3: {reason}"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("p.txt", b"fine\nna\xefve\n", "line 2 is not UTF-8 text"),
        ("p.txt", b"\n \n", "holds no prompt"),
        ("p.json", b"[]", "write one JSON object a line, in a file that ends in .jsonl"),
    ],
)
def test_a_file_that_cannot_be_used(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(UserError) as caught:
        load_prompts(RunConfig(prompts=path))
    assert str(caught.value) == f"--prompts {path}: {reason}"


def test_a_missing_file_and_a_flag_that_is_not_utf8() -> None:
    with pytest.raises(UserError, match=r"^--prompts nowhere.txt: no such file$"):
        load_prompts(RunConfig(prompts="nowhere.txt"))
    with pytest.raises(UserError, match=r"^--prompt 'na\\udcefve': is not UTF-8 text$"):
        load_prompts(RunConfig(prompt=("na\udcefve",)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\n{b\n", ["a", "{b"]),
        (b'{"prompt": "a"}\n{"prompt": "b"}\n', ["a", "b"]),
        (b"{not json}\n", ["{not json}"]),
    ],
)
def test_standard_input_is_jsonl_if_its_first_line_is(
    content: bytes, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert texts(RunConfig(prompts="-")) == expected


@pytest.mark.case("S5")
def test_a_seed_is_drawn_for_sampled_prompts_without_one() -> None:
    greedy, sampled = SamplingParams(), SamplingParams(temperature=1.0)
    prompts = [Prompt(text="a", params=params) for params in (greedy, sampled, SamplingParams(temperature=1.0, seed=3))]
    seeded, seed = fix_seed(prompts)
    assert seed is not None
    assert [prompt.params.seed for prompt in seeded] == [seed, seed, 3]
    assert len({fix_seed(prompts)[1] for _ in range(5)}) > 1
    assert fix_seed(prompts[::2]) == (prompts[::2], None)


def test_a_label_is_one_short_line() -> None:
    assert label(Prompt(text="a\n  b")) == "a b"
    assert len(label(Prompt(text="word " * 100))) == 72
    assert label(Prompt(messages=({"role": "user", "content": "hi"},))) == "hi"
    assert label(Prompt(error="bad")) == "(cannot be read)"


def test_a_label_holds_nothing_that_a_terminal_obeys() -> None:
    text = "a\x1b[31m\x07b\x9bc\u202ed\x7f\u200d\ud800é"
    assert label(Prompt(text=text)) == "a\\x1b[31m\\x07b\\x9bc\\u202ed\\x7f\u200d\\ud800é"
    assert label(Prompt(messages=({"role": "user", "content": text},))) == label(Prompt(text=text))
    assert len(label(Prompt(text="\x1b" * 100))) == 72
