"""The JSON record: its keys, and that a crash leaves a whole file."""

import errno
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pearl_pp.console.record import JsonRecord, require_own_paths, require_writable
from pearl_pp.errors import UserError
from pearl_pp.runtime.metrics import totals
from pearl_pp.runtime.request import RequestOutput


def record_at(path: Path) -> JsonRecord:
    return JsonRecord(str(path), config={"gamma": 5}, plan={"target": [1]}, versions={"torch": "2"}, mode="real")


def output(text: str, *, logprobs: list[float] | None = None) -> RequestOutput:
    return RequestOutput("p", [1], [2, 3], text, "stop", logprobs=logprobs)


def test_keys_are_those_of_the_documentation(tmp_path: Path) -> None:
    record = record_at(tmp_path / "r.json")
    record.add(output("héllo", logprobs=[-0.5, -1.0]))
    content = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert set(content) == {"requests", "config", "plan", "versions", "totals", "mode"}
    assert (content["mode"], content["config"], content["plan"]) == ("real", {"gamma": 5}, {"target": [1]})
    names = ["prompt", "prompt_token_ids", "token_ids", "text", "finish_reason", "error", "metrics"]
    assert list(content["requests"][0]) == [*names, "logprobs"]
    record.add(output("no logprobs"))
    content = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert list(content["requests"][1]) == names
    assert content["requests"][0]["text"] == "héllo"


def test_the_file_holds_each_request_as_soon_as_it_is_added(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    record = record_at(path)
    for count in range(4):
        assert len(json.loads(path.read_text())["requests"]) == count
        record.add(output(str(count)))


def test_a_place_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    require_writable("--json", None)
    require_writable("--json", str(tmp_path / "new.json"))
    assert os.listdir(tmp_path) == []
    with pytest.raises(UserError, match=r"^--json .*/no/r.json: cannot be written: No such file or directory$"):
        require_writable("--json", str(tmp_path / "no" / "r.json"))
    with pytest.raises(UserError, match=r"^--trace .*: is a folder$"):
        require_writable("--trace", str(tmp_path))


def test_a_file_is_not_written_over_another_that_the_run_needs(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match=r"--json .*link: is the file of --prompts, too"):
        require_own_paths({"--json": str(tmp_path / "link"), "--trace": None}, {"--prompts": str(tmp_path / "a")})
    with pytest.raises(UserError, match=r"--trace .*b: is the file of --json, too"):
        require_own_paths({"--json": str(tmp_path / "b"), "--trace": str(tmp_path / "b")}, {"--prompts": None})
    require_own_paths({"--json": str(tmp_path / "b"), "--trace": str(tmp_path / "c")}, {"--prompts": "-"})


def test_totals_added_up_request_by_request_are_those_over_all(
    tmp_path: Path, metrics_of: Callable[..., dict[str, Any]]
) -> None:
    record = record_at(tmp_path / "r.json")
    each = [metrics_of(n) | {"ttft_s": None if n == 3 else 0.1 * n, "accepted_runs": [n]} for n in range(1, 7)]
    for number, metrics in enumerate(each):
        record.add(replace(output(str(number)), metrics=metrics))
    record.add(replace(output("no answer"), metrics={}, error="cannot be used"))
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["totals"] == record.totals()
    for name, value in totals(each).items():
        assert record.totals()[name] == (pytest.approx(value) if isinstance(value, float) else value)
    assert [request["text"] for request in content["requests"]] == [*"012345", "no answer"]


def test_requests_live_in_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    record = record_at(path)
    record.add(output("x" * 10_000))
    path.unlink()  # somebody tidies up: what has been recorded comes back with the next request
    record.add(output("second"))
    texts = [request["text"] for request in json.loads(path.read_text())["requests"]]
    assert texts == ["x" * 10_000, "second"]
    kept = [value for line in record.lines for value in line if value is not None]
    assert len(pickle.dumps(kept)) < 1000, "a long answer is kept nowhere else"


@pytest.mark.case("P4")
def test_a_disk_without_room_is_one_line_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    record = record_at(path)
    record.add(output("first"))

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(UserError) as caught:
        record.add(output("second"))
    assert str(caught.value) == f"--json {path}: cannot be written: No space left on device"
    assert [request["text"] for request in json.loads(path.read_text())["requests"]] == ["first"]
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_file_that_has_gone_again_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_at(tmp_path / "r.json")
    replace = os.replace

    def replace_then_lose(source: str, target: str) -> None:
        replace(source, target)
        os.unlink(target)

    monkeypatch.setattr(os, "replace", replace_then_lose)
    with pytest.raises(UserError, match=r"^--json .*: cannot be written: No such file"):
        record.add(output("first"))


def test_prompts_in_a_file_whose_name_is_no_text_can_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    JsonRecord(str(path), config={"prompts": "caf\udce9.txt"}, plan={}, versions={}, mode="real").add(output("a"))
    assert json.loads(path.read_text(encoding="utf-8"))["config"] == {"prompts": "caf\udce9.txt"}
