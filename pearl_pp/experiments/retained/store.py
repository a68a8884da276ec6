"""What an experiment has found out so far, in a folder: complete on disk after each run, whatever ends the program."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import BaseModel, TypeAdapter

from pearl_pp.config.reading import read_text
from pearl_pp.errors import UserError
from pearl_pp.experiments.retained.experiment import RECORD_FORMAT, Experiment
from pearl_pp.experiments.retained.job import Key
from pearl_pp.experiments.retained.recorded import Kept, Recorded, fault_of
from pearl_pp.files import encoded, write_whole, writing

OPTION = "--out"
RESULTS, EXPERIMENT, SKIPPED, LOCK = "results.jsonl", "experiment.json", "skipped.json", ".lock"
TRACES, PROFILES, PLACEMENTS = "traces", "profiles", "placements"
_LONGEST_SLUG = 80  # a file's name may have 255 bytes, and holds two of them


@dataclass(frozen=True)
class Skipped:
    """What was not run. Args: prompt: "" where it is the whole row. failed: it broke off; else it was refused."""

    case: str
    row: str
    variant: str
    prompt: str
    reason: str
    failed: bool = False


_SKIPPED = TypeAdapter(list[Skipped])


class Store:
    """The folder of one experiment, for one program at a time.

    A record is one line, on disk before `add` returns; a line that was cut short by the end of a program is dropped
    by the next one. A context manager; closing it lets others in.

    Raises:
        UserError: the folder is of another experiment, in use, or cannot be read or written.
    """

    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out = out
        self.records: dict[Key, dict[str, Any]] = {}
        self.skipped: list[Skipped] = []
        self._results = -1
        with writing(OPTION, out):
            for folder in (out, out / TRACES, out / PROFILES, out / PLACEMENTS):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(out)
            try:
                _require_same(out, experiment)
                self._write(out / EXPERIMENT, _text(experiment.record()))
                self._results = os.open(out / RESULTS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
                self._drop_torn_line()
                self.records = {Key.of(record["key"]): record for record in read_records(out, Kept)}
                self._write_skipped()
                _sync_folder(out)
            except BaseException:
                self.close()
                raise

    def add(self, key: Key, record: Mapping[str, Any]) -> None:
        """Keep the record of a run, once."""
        if key in self.records:
            raise ValueError(f"{key} has been run already")
        whole = {"key": key.record(), **record}
        if (fault := fault_of(whole, Kept)) is not None:  # now, not when it is read
            raise UserError(OPTION, self.out, f"cannot hold the record of this run: {fault}")
        line = encoded(json.dumps(whole, ensure_ascii=False, allow_nan=False) + "\n")
        before = os.fstat(self._results).st_size
        with writing(OPTION, self.out):
            try:
                while line:
                    line = line[os.write(self._results, line) :]
                os.fsync(self._results)
            except OSError:
                os.ftruncate(self._results, before)
                raise
        self.records[key] = whole

    def skip(self, skipped: Skipped) -> None:
        """Say that something was not run, and why."""
        self.skipped.append(skipped)
        self._write_skipped()

    def add_trace(self, key: Key, trace: Mapping[str, Any]) -> None:
        """Keep the Chrome trace of one run of a row."""
        self._write(self.trace_path(key), json.dumps(trace))

    def trace_path(self, key: Key) -> Path:
        return trace_path(self.out, key.case, key.row)

    def close(self) -> None:
        if self._results >= 0:
            os.close(self._results)
            self._results = -1
        os.close(self._lock)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_skipped(self) -> None:
        self._write(self.out / SKIPPED, _text([asdict(skipped) for skipped in self.skipped]))

    def _write(self, path: Path, text: str) -> None:
        write_whole(OPTION, path, text, durable=True)

    def _drop_torn_line(self) -> None:
        content = (self.out / RESULTS).read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._results, whole)
            os.fsync(self._results)


def read_records(out: Path, schema: type[BaseModel] = Recorded, option: str = OPTION) -> list[dict[str, Any]]:
    """All complete records of a folder, in the order in which they were made.

    Args:
        schema: what each must hold. option: that names the folder.

    Raises:
        UserError: there are none, or a line is not one; names the line.
    """
    path = out / RESULTS
    if not os.path.exists(path):
        raise UserError(option, out, f"holds no {RESULTS}")
    lines = read_text(option, str(path)).split("\n")
    records = []
    keys: set[Key] = set()
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line, parse_constant=_refused)
            key = Key.of(record["key"])
            hash(key)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(option, path, f"line {number} is not a record of an experiment") from None
        if (fault := fault_of(record, schema)) is not None:
            raise UserError(option, path, f"line {number} is not a whole record of a run: {fault}")
        if key in keys:
            raise UserError(option, path, f"line {number} is of a run that is there already")
        keys.add(key)
        records.append(record)
    return records


def _text(content: object) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def read_skipped(out: Path, option: str = OPTION) -> list[Skipped]:
    """What was not run; nothing where nobody has said so."""
    path = out / SKIPPED
    if not os.path.exists(path):
        return []
    text = read_text(option, str(path))
    try:
        return _SKIPPED.validate_python(json.loads(text))
    except (ValueError, RecursionError):  # pydantic's error is one of the first
        raise UserError(option, path, "is not a list of what was not run") from None


def trace_path(out: Path, case: str, row: str) -> Path:
    """Of the one trace that there is of a row."""
    return out / TRACES / f"{slug(case)}.{slug(row)}.json"


def slug(name: str) -> str:
    """A name as part of a file's, of which there are two in one; names that differ stay different."""
    text = "".join(_slugged(name))
    if len(text) <= _LONGEST_SLUG:
        return text
    return f"{text[:_LONGEST_SLUG]}~~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _slugged(name: str) -> Iterator[str]:
    for character in name:
        if character.isascii() and (character.isalnum() or character == "-"):
            yield character
        else:
            yield "_" if character == " " else f"~{ord(character):x}~"


def _locked(out: Path) -> int:
    """A lock on the folder that is gone when this process is."""
    lock = os.open(out / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UserError(OPTION, out, "is in use by another bench") from None
    return lock


def _require_same(out: Path, experiment: Experiment) -> None:
    try:
        there = json.loads((out / EXPERIMENT).read_text(encoding="utf-8"))
        digest, name, format_ = there["digest"], there["name"], there["format"]
    except FileNotFoundError:
        if (out / RESULTS).exists():
            raise UserError(OPTION, out, f"has a {RESULTS} of something else; give another folder") from None
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(OPTION, out, f"its {EXPERIMENT} is none of an experiment; give another folder") from None
    if format_ != RECORD_FORMAT:
        raise UserError(OPTION, out, "holds records of another version of pearl_pp; give another folder")
    if digest != experiment.digest:
        reason = (
            f"holds results of another experiment ({name}, {digest}; this is {experiment.name}, {experiment.digest})"
        )
        raise UserError(OPTION, out, f"{reason}; give another folder")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
