"""PEARL over pipeline stages: parallel speculative decoding on the GPUs that the target model needs anyway."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pearl_pp.decoding.sampling_params import SamplingParams
    from pearl_pp.runtime.engine import PearlPP
    from pearl_pp.runtime.request import Prompt, RequestOutput

__all__ = ["PearlPP", "Prompt", "RequestOutput", "SamplingParams"]
__version__ = "0.1.0"

_HOMES = {
    "PearlPP": "pearl_pp.runtime.engine",
    "Prompt": "pearl_pp.runtime.request",
    "RequestOutput": "pearl_pp.runtime.request",
    "SamplingParams": "pearl_pp.decoding.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Imports torch only when the engine is asked for, so that options are checked fast."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
