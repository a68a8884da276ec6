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


# Where a failed run is told, whatever the failure.
TOLD_IN = ("console/leaving.py", "console/launching.py", "transport/base.py", "transport/joining.py")
TOLD_STARTS = ("error: ", "rank ")


def lines_told() -> list[str]:
    """What these files say of a run that fails; what is filled in is `…`."""
    lines = []
    for name in TOLD_IN:
        for node in ast.walk(ast.parse((ROOT / "pearl_pp" / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                lines.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
    return [line for line in lines if line.startswith(TOLD_STARTS) and "…" in line]


def test_all_ways_in_which_a_run_fails_are_in_the_document() -> None:
    told, document = lines_told(), DOCUMENT.read_text(encoding="utf-8")
    assert len(told) >= 8
    for line in told:
        known = [part.strip(" :\n") for part in line.removeprefix("error: ").split("…")]
        assert all(part in document for part in known), line


# The rooms of a run. A reason that begins like this says itself what to do.
ROOMS_OF_A_RUN = ("builtin", "config", "decoding", "planning", "runtime", "stages", "transport")
FILES_OF_A_RUN = ("console/prompts.py", "console/record.py")
SAYS_WHAT_TO_DO = ("must ", "needs ", "say ", "give ", "no such ")


def reasons() -> list[tuple[str, str]]:
    """The reason of each UserError of a run that is written where it is raised, and the file."""
    found = []
    files = [file for room in ROOMS_OF_A_RUN for file in (ROOT / "pearl_pp" / room).rglob("*.py")]
    for file in sorted([*files, *(ROOT / "pearl_pp" / name for name in FILES_OF_A_RUN)]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError" and len(node.args) == 3:
                match node.args[2]:
                    case ast.JoinedStr(values=values):
                        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in values]
                        found.append((file.name, "".join(map(str, parts))))
                    case ast.Constant(value=str(text)):
                        found.append((file.name, text))
    return found


def test_every_reason_of_a_run_is_in_the_document_or_says_what_to_do() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert len(reasons()) > 50
    missing = []
    for file, reason in reasons():
        known = [part.strip(" :;,.") for part in reason.split("…") if len(part.strip()) >= SHORTEST]
        if not reason.startswith(SAYS_WHAT_TO_DO) and not all(part in document for part in known):
            missing.append((file, reason))
    assert not missing
