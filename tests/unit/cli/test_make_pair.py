"""`pearl-pp make-pair`: what it writes, and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pearl_pp import cli
from pearl_pp.config import read_shape
from pearl_pp.stages.agreement import measure

SHAPE = """\
# tiny
name: tiny
hidden_size: 32
intermediate_size: 48
num_layers: 4
num_heads: 2
num_kv_heads: 1
vocab_size: 64
max_positions: 128
draft: {num_layers: 1}
"""


def test_it_finds_eps_and_writes_it_into_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(SHAPE)
    assert cli.main(["make-pair", "--shape", str(file), "--agreement", "0.6", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out.splitlines()
    shape = read_shape(file)
    assert shape.agreement == pytest.approx(0.6, abs=0.04)
    assert measure(shape).agreement == pytest.approx(shape.agreement, abs=0.0005)
    assert f"tiny: eps {shape.eps:g} gives agreement {shape.agreement:.3f} on 2048 tokens" in printed
    assert printed[-1] == f"written to {file}: --target synthetic:{file} --draft synthetic:{file}"
    assert file.read_text().startswith(SHAPE)


def test_out_leaves_the_shape_as_it_was(tmp_path: Path) -> None:
    file, out = tmp_path / "tiny.yaml", tmp_path / "found.yaml"
    file.write_text(SHAPE)
    assert cli.main(["make-pair", "--shape", str(file), "--agreement", "1", "--out", str(out), "--device", "cpu"]) == 0
    assert file.read_text() == SHAPE
    assert (read_shape(out).eps, read_shape(out).agreement) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "--shape: say which, as in pearl-pp make-pair --shape cpu_small"),
        (["--shape", "cpu_smal"], "--shape synthetic:cpu_smal: no such shape; did you mean cpu_small?"),
        (["--shape", "cpu_small", "--agreement", "2"], "--agreement 2.0: must be more than 0 and at most 1"),
        (["--shape", "cpu_small", "--agreement", "x"], "--agreement: invalid float value: 'x'"),
        (["--shape", "cpu_small", "--agrement", "1"], "--agrement: no such option; did you mean --agreement?"),
        (["--shape", "cpu_small", "--out", "/no/such/x.yaml"], "--out /no/such/x.yaml: no such folder"),
        (["--shape", "cpu_small", "--device"], "--device: expected one argument"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["make-pair", *argv]) == 2
    assert capsys.readouterr() == ("", f"error: {expected}\n")
