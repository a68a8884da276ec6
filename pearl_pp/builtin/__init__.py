"""The embedded model pair: a small trained target and its draft, and eight prompts (see MODEL_CARD.md)."""

import json
from pathlib import Path

_HERE = Path(__file__).resolve().parent
TARGET_DIR = _HERE / "target"
DRAFT_DIR = _HERE / "draft"
PROMPTS_FILE = _HERE / "prompts.jsonl"


def prompts() -> list[str]:
    """The eight built-in prompts, shortest first: excerpts of files that the pair was not trained on."""
    lines = PROMPTS_FILE.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]
