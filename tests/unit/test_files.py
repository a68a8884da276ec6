"""Files are replaced whole or not at all, and what cannot be written is one line."""

import errno
import json
import os
from pathlib import Path

import pytest

from pearl_pp.errors import UserError
from pearl_pp.files import replacing, write_whole


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["replace", "fsync", "chmod"])
def test_a_write_that_fails_is_one_line_and_leaves_the_old_file_and_no_scrap(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    write_whole("--out", path, "old")
    monkeypatch.setattr(os, call, no_space)
    with pytest.raises(UserError) as caught:
        write_whole("--out", path, "new", durable=True)
    assert str(caught.value) == f"--out {path}: cannot be written: No space left on device"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_readers_never_see_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    write_whole("--out", path, "old")
    replace = os.replace

    def check_then_replace(source: str, target: str) -> None:
        assert path.read_text() == "old" and Path(source).read_text() == "new" * 100_000
        replace(source, target)

    monkeypatch.setattr(os, "replace", check_then_replace)
    write_whole("--out", path, "new" * 100_000)
    assert path.read_text() == "new" * 100_000


def test_permissions_and_links_are_those_of_a_plain_write(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    (tmp_path / "plain").write_text("")
    link.symlink_to(real)
    write_whole("--out", link, "x")
    assert link.is_symlink() and real.read_text() == "x"
    assert real.stat().st_mode == (tmp_path / "plain").stat().st_mode
    real.chmod(0o640)
    write_whole("--out", real, "y")
    assert real.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("pipe", "is not a regular file"), (".", "is a folder"), ("x" * 300, "cannot be written: .*")):
        with pytest.raises(UserError, match=rf"^--trace .*: {reason}"):
            write_whole("--trace", tmp_path / name, "x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_fault_while_it_is_written_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), replacing("--out", tmp_path / "a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["caf\udce9.txt", "\ud83d"])
def test_a_name_that_is_no_text_can_be_written_and_read(name: str, tmp_path: Path) -> None:
    write_whole("--json", tmp_path / "a.json", json.dumps({"prompts": name}, ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"prompts": name}


@pytest.mark.parametrize("name", ["x" * 255, "\U0001f469" * 63])
def test_a_long_name_leaves_room_for_the_scratch_files(name: str, tmp_path: Path) -> None:
    write_whole("--out", tmp_path / name, "x")
    assert os.listdir(tmp_path) == [name]
