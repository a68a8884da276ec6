"""Calling a stage's decoder layers directly, with what the model's own forward would pass them.

What a forward does around its layers costs as much as two small layers: wrappers, output records, masks,
rotary tables. All of it is the same in every pass but for the positions. So the forward runs once with
recorders in place of its layers, and each pass slices what was recorded. Where a forward does more than that,
`record_calls` says so, or `Stage` sees other numbers, and the model-level forward stays in use.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from pearl_pp.stages.attention import causal_block, causal_mask

Table = torch.Tensor | tuple[torch.Tensor, ...]
ROWS = 2  # in the recorded pass: two rows tell a sliding window from a chunk


class CannotReplay(Exception):
    """A forward hands its layers something that is no function of the positions alone."""


class Arguments(NamedTuple):
    """What one kind of layer is called with."""

    constants: Mapping[str, Any]
    tables: Mapping[str, Table]  # over all positions: [1, positions, ..]
    window: int | None  # of the causal mask; 0: it sees everything before; None: no mask is passed

    def at(self, start: int, num_rows: int, groups: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        """The keyword arguments of a pass over the positions start .. start + num_rows - 1."""
        arguments = dict(self.constants)
        for name, table in self.tables.items():
            if isinstance(table, tuple):
                arguments[name] = tuple([part.narrow(1, start, num_rows) for part in table])
            else:
                arguments[name] = table.narrow(1, start, num_rows)
        if self.window is not None:
            arguments["attention_mask"] = causal_mask(num_rows, start, groups, self.window, dtype, device)
        return arguments


class LayerCalls(NamedTuple):
    """Layers in their order, each with the number of its kind in `kinds`, good for `num_positions` positions.

    `groups` query heads share a KV head.
    """

    layers: tuple[tuple[nn.Module, int], ...]
    kinds: tuple[Arguments, ...]
    groups: int
    num_positions: int

    def run(self, hidden: torch.Tensor, start: int) -> torch.Tensor:
        """Hidden states [1, n, hidden] of positions start .. start + n - 1, through all layers."""
        num_rows = hidden.shape[1]
        arguments = [kind.at(start, num_rows, self.groups, hidden.dtype, hidden.device) for kind in self.kinds]
        for layer, kind in self.layers:
            hidden = layer(hidden, **arguments[kind])
        return hidden


def record_calls(
    layers: nn.ModuleList,
    forward: Callable[[nn.ModuleList, torch.Tensor, torch.Tensor], object],
    hidden: torch.Tensor,
    num_positions: int,
    groups: int,
) -> LayerCalls:
    """Find out what each of `layers` is called with.

    `forward(layers, hidden, position_ids)` runs the model with other layers in place, its cache at a length
    of num_positions - 2, on `hidden` [1, 2, hidden]; position_ids [1, num_positions] gives all tables whole.
    Raises CannotReplay where what the layers get cannot be made from positions.
    """
    recorders = [_Recorder() for _ in layers]
    forward(nn.ModuleList(recorders), hidden, torch.arange(num_positions, device=hidden.device)[None])
    kinds: dict[tuple, Arguments] = {}
    numbers: list[int] = []
    for recorder in recorders:
        arguments = recorder.arguments
        key = tuple(
            (name, value if isinstance(value, (bool, int, str)) else id(value)) for name, value in arguments.items()
        )
        if key not in kinds:
            kinds[key] = _classify(arguments, num_positions, groups)
        numbers.append(list(kinds).index(key))
    return LayerCalls(tuple(zip(layers, numbers, strict=True)), tuple(kinds.values()), groups, num_positions)


class _Recorder(nn.Module):
    """Stands in for a decoder layer and keeps its keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {}

    def forward(self, hidden: torch.Tensor, /, **arguments: Any) -> torch.Tensor:
        self.arguments = arguments
        return hidden


def _classify(arguments: Mapping[str, Any], num_positions: int, groups: int) -> Arguments:
    constants: dict[str, Any] = {}
    tables: dict[str, Table] = {}
    window = None
    for name, value in arguments.items():
        parts = value if isinstance(value, tuple) else (value,)
        if not any(isinstance(part, torch.Tensor) for part in parts):
            constants[name] = value
        elif isinstance(value, torch.Tensor) and name == "attention_mask":
            window = _window(value, num_positions, groups)
        elif all(part.ndim >= 2 and part.shape[:2] == (1, num_positions) for part in parts):
            tables[name] = value
        else:
            raise CannotReplay(name)
    return Arguments(constants, tables, window)


def _window(mask: torch.Tensor, num_positions: int, groups: int) -> int:
    """The window of the causal mask that was seen. Raises CannotReplay if it is no such mask."""
    visible = int((mask[0, 0, 0] == 0).sum())
    window = 0 if visible == num_positions - ROWS + 1 else visible
    expected = causal_block(ROWS, num_positions - ROWS, groups, window, mask.dtype, mask.device)
    if mask.shape != expected.shape or not torch.equal(mask, expected):
        raise CannotReplay("attention_mask")
    return window
