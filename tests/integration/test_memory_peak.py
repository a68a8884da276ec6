"""What a run planned for each rank against what the rank really took."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.commands import pearl_pp_run

pytestmark = pytest.mark.alone

# The prompt comes in pieces, through the draft in parts; the caches grow twice and are full in the end.
MAX_LEN = 1500
PROMPT_LEN = 1400


@pytest.mark.slow
@pytest.mark.case("M1")
@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
def test_every_ranks_peak_is_what_was_planned(tmp_path: Path) -> None:
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "run.json"
    text = "7 " * (PROMPT_LEN // 2)
    entry = {"prompt": text, "max_new_tokens": MAX_LEN - len(text), "ignore_eos": True}
    prompts.write_text(json.dumps(entry) + "\n")
    models = ["--target", "synthetic:cpu_small", "--draft", "synthetic:cpu_small", "--placement", "hop"]
    files = ["--prompts", str(prompts), "--json", str(file), "--quiet"]
    run = pearl_pp_run(4, *models, *files, "--max-model-len", str(MAX_LEN), "--device", "cpu")
    assert run.exit_code == 0, run.stderr
    record = json.loads(file.read_text())
    (request,) = record["requests"]
    length = len(request["prompt_token_ids"]) + len(request["token_ids"])
    assert MAX_LEN - 1 <= length <= MAX_LEN, "the caches are full"
    ranks = request["metrics"]["per_rank"]
    assert [rank["planned_bytes"] for rank in ranks] == [kinds["total"] for kinds in record["plan"]["planned_bytes"]]
    print("\nplanned and peak bytes of each rank, in MB, measured here")
    for number, (rank, kinds) in enumerate(zip(ranks, record["plan"]["planned_bytes"], strict=True)):
        shown = ", ".join(f"{kind} {size / 1e6:.1f}" for kind, size in kinds.items() if size and kind != "total")
        ratio = rank["peak_bytes"] / rank["planned_bytes"]
        print(f"rank {number}: planned {rank['planned_bytes'] / 1e6:.1f} ({shown}), peak / planned {ratio:.3f}")
    for rank in ranks:
        assert rank["peak_bytes"] == pytest.approx(rank["planned_bytes"], rel=0.05)
