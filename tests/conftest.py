"""What all tests share: one thread per process, no model hub, and what to do with the marks."""

import os
import re
import signal

# Before anything imports torch or transformers; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

# A job in the background of a shell ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings

# A pass may take long on a busy machine, which is no fault; CI tries the same examples every time.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

_ONLY_WHEN_ASKED = {"real_weights": "downloads a model", "long": "takes many minutes"}

_CASE_ID = re.compile(r"[A-Z]\d+")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuses malformed case marks; skips `gpu` tests without a CUDA device, and what runs only when asked for."""
    for item in items:
        for mark in item.iter_markers("case"):
            if not mark.args or not all(_CASE_ID.fullmatch(str(arg)) for arg in mark.args):
                raise pytest.UsageError(f'{item.nodeid}: a case mark names its row, as in case("E1")')
    for name, reason in _ONLY_WHEN_ASKED.items():
        if name not in config.getoption("-m"):
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=f"{reason}: only with -m {name}"))
    wanting_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if wanting_gpu and not _has_cuda():
        for item in wanting_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
