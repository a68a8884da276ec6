"""YAML that is no options file, whatever it is: one line that names the file, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from pearl_pp.config.reading import read_text, read_yaml
from pearl_pp.errors import UserError


@pytest.mark.parametrize(
    "content", ["seed: 2026-13-45", 'prompt: !!int "x"', "? [a, b]\n: 3", "[" * 3000, "- a", "a: 1\na: 2"]
)
def test_every_odd_yaml_is_a_users_mistake(content: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_yaml("--config", str(path))
    assert str(caught.value).startswith(f"--config {path}: ")
    assert "\n" not in str(caught.value)


def test_a_path_with_a_null_byte_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_text("--prompts", "a\0b")
