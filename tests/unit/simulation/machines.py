"""Small profiles for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pearl_pp.simulation.profile import Profile


def profile_content(**changes: Any) -> dict[str, Any]:
    """T = 40 ms, t = 5 ms, five equal ranks, free links; `target__pass_ms=20` changes a nested key."""
    content: dict[str, Any] = {
        "name": "test",
        "target": {
            "pass_ms": 40.0,
            "num_layers": 8,
            "hidden_size": 64,
            "vocab_size": 4096,
            "kv_bytes_per_token": 8 * 256,
        },
        "draft": {"pass_ms": 5.0, "num_layers": 4, "hidden_size": 32, "kv_bytes_per_token": 4 * 128},
        "ranks": {"memory_gb": [8] * 5, "speed": [1] * 5},
        "prefill_tokens_per_s": 10_000,
        "link": {"latency_us": 0, "bandwidth_gb_s": 1000},
        "acceptance": 0.7,
    }
    for key, value in changes.items():
        entry, *parts = key.split("__")
        if parts:
            content[entry] = content[entry] | {parts[0]: value}
        else:
            content[entry] = value
    return content


def profile(**changes: Any) -> Profile:
    return Profile.model_validate(profile_content(**changes))


def save_profile(folder: Path, **changes: Any) -> str:
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(profile_content(**changes)))
    return str(path)
