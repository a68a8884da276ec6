"""The folder of an experiment: nothing is lost, nothing is there twice, and nobody else gets in."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pearl_pp.errors import UserError
from pearl_pp.experiments.retained import store as store_module
from pearl_pp.experiments.retained.experiment import Experiment
from pearl_pp.experiments.retained.job import MEASURE, Key
from pearl_pp.experiments.retained.store import RESULTS, Skipped, Store, read_records, read_skipped, slug
from tests.unit.experiments.retained import made_up

EXPERIMENT = Experiment("mine", "a title", "abc", 1, 0, 1, (), {})
RECORD = {name: value for name, value in made_up.record("hop", 5.0).items() if name != "key"}
RECORD["text"] = "zwei\u2028Zeilen\n"


def key(number: int) -> Key:
    return Key("case", "hop", "gamma 3", MEASURE, number, "builtin/0")


def test_what_is_added_is_there_for_the_next_one(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b", EXPERIMENT) as store:
        store.add(key(0), RECORD)
        store.add(key(1), RECORD)
        with pytest.raises(ValueError):
            store.add(key(1), RECORD)
    with Store(tmp_path / "a" / "b", EXPERIMENT) as store:
        assert list(store.records) == [key(0), key(1)]
        assert store.records[key(1)] == {"key": key(1).record(), **RECORD}
        store.add(key(2), RECORD)
    assert [Key.of(record["key"]).round for record in read_records(tmp_path / "a" / "b")] == [0, 1, 2]


@pytest.mark.parametrize("torn", ["{", '{"key": {"case": "case"', "\u00e9"])
def test_a_torn_line_is_dropped(tmp_path: Path, torn: str) -> None:
    with Store(tmp_path, EXPERIMENT) as store:
        store.add(key(0), RECORD)
    with open(tmp_path / RESULTS, "ab") as file:
        file.write(torn.encode()[:-1] if len(torn) == 1 else torn.encode())
    with Store(tmp_path, EXPERIMENT) as store:
        store.add(key(1), RECORD)
    assert len(read_records(tmp_path)) == 2


def test_a_reader_leaves_out_a_line_that_is_being_written(tmp_path: Path) -> None:
    with Store(tmp_path, EXPERIMENT) as store:
        store.add(key(0), RECORD)
    with open(tmp_path / RESULTS, "a") as file:
        file.write('{"key"')
    assert len(read_records(tmp_path)) == 1


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = store_module.os.write

    def short_of_room(handle: int, content: bytes) -> int:
        write(handle, content[:5])
        raise OSError(28, "No space left on device")

    with Store(tmp_path, EXPERIMENT) as store:
        store.add(key(0), RECORD)
        with monkeypatch.context() as patch, pytest.raises(UserError, match="No space left on device"):
            patch.setattr(store_module.os, "write", short_of_room)
            store.add(key(1), RECORD)
        store.add(key(1), RECORD)
    assert len(read_records(tmp_path)) == 2


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with Store(tmp_path, EXPERIMENT), pytest.raises(UserError, match="is in use by another bench"):
        Store(tmp_path, EXPERIMENT)
    Store(tmp_path, EXPERIMENT).close()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            replace(EXPERIMENT, digest="x").record(),
            r"holds results of another experiment \(mine, x; this is mine, abc\)",
        ),
        (EXPERIMENT.record() | {"format": 0}, "holds records of another version of pearl_pp"),
        ({}, "its experiment.json is none of an experiment"),
        (None, "has a results.jsonl of something else"),
    ],
)
def test_the_folder_of_something_else_is_refused(tmp_path: Path, content: Any, expected: str) -> None:
    (tmp_path / RESULTS).write_text("")
    if content is not None:
        (tmp_path / "experiment.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=expected) as caught:
        Store(tmp_path, EXPERIMENT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", ["x", "[]", "{}", '{"key": {"case": 1}}', "", json.dumps({**RECORD, "key": key(0).record()})]
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    with Store(tmp_path, EXPERIMENT) as store:
        store.add(key(0), RECORD)
    with open(tmp_path / RESULTS, "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"line 2 is (not a record|of a run that is there already)"):
        Store(tmp_path, EXPERIMENT)
    with pytest.raises(UserError, match=r"holds no results\.jsonl"):
        read_records(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--out .*file/x: cannot be written: Not a directory"):
        Store(tmp_path / "file" / "x", EXPERIMENT)


def test_what_was_skipped_is_told_of_the_last_time(tmp_path: Path) -> None:
    skipped = Skipped("case", "hop", "", "", "does not fit")
    with Store(tmp_path, EXPERIMENT) as store:
        store.skip(skipped)
    assert read_skipped(tmp_path) == [skipped]
    Store(tmp_path, EXPERIMENT).close()
    assert read_skipped(tmp_path) == []


def test_names_of_files_stay_apart() -> None:
    names = ["hop ship", "hop_ship", "hop/ship", "hop.ship", "höp", "a~b"]
    assert len({slug(name) for name in names}) == len(names)
    assert slug("Llama-2 7B and 70B") == "Llama-2_7B_and_70B"


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"key": %s, "x": NaN}', '{"key": {"case": []}}'], ids=["nested", "no number", "no key"]
)
def test_what_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    with Store(tmp_path, EXPERIMENT) as store:
        store.add(key(0), RECORD)
    with open(tmp_path / RESULTS, "a") as file:
        file.write(line.replace("%s", json.dumps(key(1).record())) + "\n")
    with pytest.raises(UserError, match="line 2 is not a record of an experiment"):
        Store(tmp_path, EXPERIMENT)


def test_a_key_of_other_things_than_words_is_no_record(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(json.dumps({"key": key(0).record() | {"prompt": ["a"]}}) + "\n")
    with pytest.raises(UserError, match="line 1 is not a record of an experiment"):
        read_records(tmp_path)


def test_a_long_name_is_a_files_name_still(tmp_path: Path) -> None:
    long = "\u65e5" * 200
    with Store(tmp_path, EXPERIMENT) as store:
        store.add_trace(Key(long, long, "", MEASURE, 0, ""), {"traceEvents": []})
    assert slug(long) != slug(long + "\u65e5") and slug(long) != slug(long[:-1])


def test_no_room_for_a_trace_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Store(tmp_path, EXPERIMENT) as store:
        monkeypatch.setattr(store_module.os, "replace", full)
        for write in (lambda: store.add_trace(key(0), {}), lambda: store.skip(Skipped("a", "b", "", "", "why"))):
            with pytest.raises(UserError, match="cannot be written: No space left"):
                write()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("text", "text is missing"),
        ("token_ids", "token_ids is missing"),
        ("text_equals_oracle", "text_equals_oracle is missing"),
        ("metrics", "metrics is missing"),
    ],
)
def test_a_folder_in_which_something_is_missing_is_not_gone_on_with(tmp_path: Path, name: str, told: str) -> None:
    with Store(tmp_path, EXPERIMENT) as store:
        store.add(key(0), RECORD)
        damaged = {key: value for key, value in RECORD.items() if key != name}
        with pytest.raises(UserError, match=rf"^--out .*: cannot hold the record of this run: {told}$"):
            store.add(key(1), damaged)
        assert list(store.records) == [key(0)]
    with (tmp_path / RESULTS).open("a") as file:
        file.write(json.dumps({"key": key(1).record(), **damaged}) + "\n")
    with pytest.raises(UserError, match=rf"^--out .*results\.jsonl: line 2 is not a whole record of a run: {told}$"):
        Store(tmp_path, EXPERIMENT)


def test_names_that_are_no_text_can_be_kept(tmp_path: Path) -> None:
    odd = replace(EXPERIMENT, content={"options": {"target": "caf\udce9"}})
    with Store(tmp_path, odd) as store:
        store.add(key(0), RECORD | {"config": {"target": "caf\udce9"}})
        store.skip(Skipped("case", "hop", "", "", "--target caf\udce9: no such folder"))
    with Store(tmp_path, odd) as store:
        assert store.records[key(0)]["config"] == {"target": "caf\udce9"}
