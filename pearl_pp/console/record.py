"""The JSON record of a run, complete on disk after each request."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pearl_pp.errors import UserError
from pearl_pp.runtime.request import RequestOutput


def require_writable(option: str, path: str | None) -> None:
    """Raise UserError unless a file can be written at `path`: better now than when the run is over."""
    if path is None:
        return
    if Path(path).is_dir():
        raise UserError(option, path, "is a folder")
    if Path(path).exists() and not Path(path).is_file():  # it would be replaced, device or not
        raise UserError(option, path, "is not a regular file")
    try:
        with tempfile.TemporaryFile(dir=Path(path).parent):
            pass
    except OSError as error:
        raise UserError(option, path, f"cannot be written: {error.strerror}") from None


def require_own_paths(written: dict[str, str | None], read: dict[str, str | None]) -> None:
    """Raise UserError where a file to be written is one that is read, or written as something else."""
    seen: dict[str, str] = {}
    for option, path in {**read, **written}.items():
        if path is None:
            continue
        if (other := seen.setdefault(os.path.realpath(path), option)) != option:
            raise UserError(option, path, f"is the file of {other}, too")


class JsonRecord:
    """What `--json` writes: requests, config, plan, versions, totals, mode (the keys of DESIGN section 9)."""

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
        self.outputs: list[RequestOutput] = []
        self._write()

    def add(self, output: RequestOutput) -> None:
        """Add a finished request; the file on disk holds it when this returns."""
        self.outputs.append(output)
        self._write()

    def totals(self) -> dict[str, Any]:
        """The metrics over all requests so far."""
        from pearl_pp.runtime.metrics import totals  # the engine's rooms load torch: not before a run starts

        return totals(output.metrics for output in self.outputs)

    def _write(self) -> None:
        if self._path is None:
            return
        content = {
            "requests": [_request(output) for output in self.outputs],
            **self._frame,
            "totals": self.totals(),
        }
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
        write_atomically(self._path, text + "\n")


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


def write_atomically(path: str, text: str) -> None:
    """Replace the file at `path`: a reader finds the old content or the new, never half of it."""
    target = Path(os.path.realpath(path))
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(scratch, _mode(target))
        os.replace(scratch, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise


def _mode(target: Path) -> int:
    """The permission bits a plain open() would give; mkstemp's are for its owner alone."""
    if target.exists():
        return target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
