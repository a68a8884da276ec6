"""The JSON record of a run, complete on disk after each request."""

import io
import json
import os
import tempfile
from pathlib import Path
from typing import IO, Any

from pearl_pp.console.summary import Line, line_of
from pearl_pp.errors import UserError
from pearl_pp.files import encoded, replacing, require_file, writing
from pearl_pp.runtime.request import RequestOutput


def require_writable(option: str, path: str | None) -> None:
    """Raise UserError unless a file can be written at `path`: better now than when the run is over."""
    if path is None:
        return
    require_file(option, path)
    with writing(option, path), tempfile.TemporaryFile(dir=Path(path).parent):
        pass


def require_own_paths(written: dict[str, str | None], read: dict[str, str | None]) -> None:
    """Raise UserError where a file to be written is one that is read, or written as something else."""
    seen: dict[str, str] = {}
    for option, path in {**read, **written}.items():
        if path is None:
            continue
        if (other := seen.setdefault(os.path.realpath(path), option)) != option:
            raise UserError(option, path, f"is the file of {other}, too")


class JsonRecord:
    """What `--json` writes: requests, config, plan, versions, totals, mode (the keys of DESIGN section 9).

    A request is put into words once; after that it lives in the file alone, so a run of many requests needs no
    more memory for its record than one of few. Raises UserError where the file cannot be written.
    """

    def __init__(
        self,
        path: str | None,
        *,
        config: dict[str, Any],
        plan: dict[str, Any],
        versions: dict[str, str],
        mode: str,
    ) -> None:
        self._path = path
        self._frame = {"config": config, "plan": plan, "versions": versions, "mode": mode}
        self._totals: dict[str, Any] | None = None
        self._ttfts = (0.0, 0)  # their sum and number
        self._file: io.FileIO | None = None  # what is on disk now, up to `_end` as the next version will have it
        self._end = 0
        self.lines: list[Line] = []
        self._write(_HEAD)

    def add(self, output: RequestOutput) -> None:
        """Add a finished request: the file on disk holds it when this returns, `lines` what the table shows of it."""
        separator = ",\n" if self.lines else "\n"
        self._count(output.metrics)
        self.lines.append(line_of(output))
        if self._path is not None:
            self._write(separator + json.dumps(_request(output), ensure_ascii=False, allow_nan=False, indent=1))

    def totals(self) -> dict[str, Any]:
        """The metrics over all requests so far."""
        return self._totals or _totals([])

    def _count(self, metrics: dict[str, Any]) -> None:
        if not metrics:
            return
        seconds, number = self._ttfts
        if metrics["ttft_s"] is not None:
            self._ttfts = seconds, number = seconds + metrics["ttft_s"], number + 1
        before = [] if self._totals is None else [self._totals]
        self._totals = _totals([*before, metrics]) | {"ttft_s": seconds / number if number else None}

    def _write(self, addition: str) -> None:
        """Replace the file by one that holds `addition` after what it holds of requests."""
        if self._path is None:
            return
        rest = json.dumps({**self._frame, "totals": self.totals()}, ensure_ascii=False, allow_nan=False, indent=1)
        with replacing("--json", self._path) as file:
            if self._file is not None:
                self._file.seek(0)
                _copy(self._file, file, self._end)
            file.write(encoded(addition))
            end = file.tell()
            file.write(encoded(f"\n],\n{rest.removeprefix('{').lstrip()}\n"))
        # The version just written, whatever becomes of its name.
        with writing("--json", self._path):
            self._file = io.FileIO(self._path)
        self._end = end


_BLOCK_BYTES = 2**16

_HEAD = '{\n"requests": ['


def _totals(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    from pearl_pp.runtime.metrics import totals  # the engine's rooms load torch: not before a run starts

    return totals(metrics)


def _copy(source: io.FileIO, to: IO[bytes], num_bytes: int) -> None:
    while num_bytes > 0 and (block := source.read(min(num_bytes, _BLOCK_BYTES))):
        to.write(block)
        num_bytes -= len(block)


def _request(output: RequestOutput) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "error": output.error,
        "metrics": output.metrics,
    }
    return entry if output.logprobs is None else entry | {"logprobs": output.logprobs}
