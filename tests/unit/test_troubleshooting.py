"""The messages in docs/troubleshooting.md are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "troubleshooting.md"
SHORTEST = 4


def messages() -> list[str]:
    """What stands in code type in the first column of the tables."""
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\) \| ", row.removeprefix("| "))[0] for row in rows]
    return [
        message for cell in cells for message in re.findall(r"`([^`]+)`", cell) if not message.startswith("--strategy")
    ]


@cache
def texts_in_code() -> str:
    """Every text in the code, one a line; what is filled in is a null byte."""
    texts = []
    for file in sorted((ROOT / "pearl_pp").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def fragments(message: str) -> list[str]:
    """The fixed parts of a message; an option's name and its value come from elsewhere."""
    message = re.sub(r"^(--[a-z-]+|MASTER_PORT) …: ", "", message)
    return [part for part in message.split("…") if len(part.strip()) >= SHORTEST]


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_document_is_in_the_code(message: str) -> None:
    missing = [fragment for fragment in fragments(message) if fragment not in texts_in_code()]
    assert not missing


def test_the_document_has_messages_and_options_that_exist() -> None:
    from pearl_pp.config import RunConfig

    assert len(messages()) > 40
    assert all(fragments(message) or "…" not in message for message in messages())
    flags = {name.replace("_", "-") for name in (*RunConfig.model_fields, "json", "help")}
    launchers = {"master-addr", "master-port", "standalone", "rdzv-id"}
    named = set(re.findall(r"`--([a-z-]+)", DOCUMENT.read_text(encoding="utf-8")))
    assert named <= flags | launchers
