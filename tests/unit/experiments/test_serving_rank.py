"""A rank that is kept alive: nothing but answers goes to standard output, which is the pipe of whoever asks."""

import os
import sys

import pytest

from pearl_pp.errors import UserError
from pearl_pp.experiments import serving_rank


def noisy(*_: object) -> None:
    os.write(1, b"from a library\n")
    raise UserError("--device", "cuda", "there is none")


@pytest.mark.parametrize("rank", ["0", "1", "3"])
def test_what_is_printed_is_no_answer(rank: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(sys, "argv", ["serving_rank", "cpu", "5"])
    monkeypatch.setattr(serving_rank, "connect", noisy)
    monkeypatch.setattr(serving_rank.Told, "_listen", lambda _: None)
    assert serving_rank.main() == 2
    out, err = capfd.readouterr()
    assert out == ('{"user_error": ["--device", "cuda", "there is none"]}\n' if rank == "0" else "")
    assert err == "from a library\n"
