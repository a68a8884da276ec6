"""What only single ranks know of a request, brought to rank 0."""

from __future__ import annotations

import json
from typing import Any

from pearl_pp.runtime.request import RequestOutput
from pearl_pp.transport.base import Channel, Transport


def traffic(transport: Transport) -> dict[str, int]:
    """What this rank has sent since its counters were reset."""
    return {
        "handoff_bytes": transport.bytes_sent(Channel.HANDOFF),
        "bytes_sent": sum(transport.bytes_sent(channel) for channel in Channel),
        "messages_sent": sum(transport.messages_sent(channel) for channel in Channel),
    }


def gather_ranks(
    transport: Transport, mine: dict[str, Any], logprobs: list[float] | None, output: RequestOutput
) -> None:
    """Collective: adds every rank's record and the log-probabilities to rank 0's `output`.

    Args:
        mine: this rank's record, with its `traffic`.
        logprobs: None on ranks that do not have them.
    """
    gathered = transport.gather_bytes(json.dumps({"rank": mine, "logprobs": logprobs}).encode(), dst=0)
    if gathered is None:
        return
    records = [json.loads(payload) for payload in gathered]
    output.metrics["per_rank"] = [record["rank"] for record in records]
    output.metrics["handoff_bytes"] = sum(record["rank"]["handoff_bytes"] for record in records)
    output.logprobs = next((r["logprobs"] for r in records if r["logprobs"] is not None), None)
