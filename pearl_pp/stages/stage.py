"""A stage: consecutive layers of a model on one device, with their KV cache."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from pearl_pp.stages import checkpoint, families
from pearl_pp.stages.attention import ATTENTION, query_groups, use_attention
from pearl_pp.stages.kv_cache import KVCache
from pearl_pp.stages.layer_calls import LayerCalls, record_calls
from pearl_pp.stages.source import ModelSource

MIN_POSITIONS = 16  # what trying a stage out takes
LONGEST_PASS = 512  # rows; by then arithmetic, not reading the weights, fills a device
FIRST_POSITIONS = 2048  # tables are made for so many at first
TRIED_PASSES = ((0, 3), (3, 4), (4, 8))  # first rows, one row and several rows behind others
MAX_ATTENTION_ERROR = 0.1  # of half the rows, relative: rounding stays far below, another formula far above


class _Parts(NamedTuple):
    """What a pass calls, out of reach of `nn.Module`'s registration."""

    decoder: PreTrainedModel
    layers_name: str
    embedding: nn.Module
    exit: tuple[nn.Module, ...]
    head: nn.Module

    @classmethod
    def of(cls, model: PreTrainedModel, place: families.Decoder) -> "_Parts":
        decoder = place.module(model)
        exit = tuple(getattr(decoder, name) for name in place.exit)
        head = model.get_output_embeddings()
        assert head is not None  # a causal language model has one
        return cls(decoder, place.layers, model.get_input_embeddings(), exit, head)


class Stage(nn.Module):
    """Layers [start, end) of a Hugging Face causal language model, run one sequence at a time.

    The first stage has the embedding, the last one the final norm and the head. Made by `build_stage`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source: ModelSource,
        start: int,
        end: int,
        dtype: torch.dtype,
        max_len: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.start = start
        self.end = end
        self.is_first = start == 0
        self.is_last = end == source.num_layers
        self.hidden_size = source.hidden_size
        self.vocab_size = source.vocab_size
        self.dtype = dtype
        self.device = next(model.parameters()).device
        self.weight_bytes = sum(p.numel() * p.element_size() for p in set(model.parameters()))
        self.cache = KVCache(start, end - start, max(max_len, MIN_POSITIONS), dtype, self.device)
        self._parts = _Parts.of(model, source.decoder)
        self._cache_arguments = self.cache.as_arguments(self._parts.decoder)
        self._calls: LayerCalls | None = None
        self._try_out(source)
        self.cache.reset(max_len)

    @property
    def held_bytes(self) -> int:
        """Weights and KV entries as they are now."""
        return self.weight_bytes + self.cache.entries.nbytes

    @property
    def is_lean(self) -> bool:
        """Whether the layers are called directly; else the model's own forward is, at more cost per pass."""
        return self._calls is not None

    def reset(self, max_len: int) -> None:
        """Begin a new sequence of at most `max_len` positions."""
        self.cache.reset(max_len)

    @torch.inference_mode()
    def run(self, inputs: torch.Tensor, start_pos: int, *, num_logits: int = 0) -> torch.Tensor:
        """One pass over the positions start_pos .. start_pos + n - 1; entries beyond start_pos are cut first.

        A pass over more than `LONGEST_PASS` positions goes through in parts, so that its activations stay small.

        `inputs`: token ids int64 [n] on the first stage, else hidden states [n, hidden] in `dtype`.
        Returns hidden states [n, hidden], or on the last stage the logits [num_logits, vocab] of the last
        `num_logits` rows, both in `dtype`. Raises ValueError where positions are missing before start_pos or
        there are more than max_len.
        """
        num_rows = inputs.shape[0]
        self.cache.cut(start_pos)
        self.cache.reserve(start_pos + num_rows)
        if num_rows <= LONGEST_PASS:
            return self._pass(inputs, start_pos, num_logits)
        # The rows whose logits are wanted stay in the last part.
        last = num_rows - (num_logits if self.is_last else 0)
        starts = [start for start in range(0, num_rows, LONGEST_PASS) if start == 0 or start <= last]
        parts = pairwise([*starts, num_rows])
        outputs = [
            self._pass(inputs[start:end], start_pos + start, num_logits if end == num_rows else 0)
            for start, end in parts
        ]
        return torch.cat(outputs)

    def _pass(self, inputs: torch.Tensor, start_pos: int, num_logits: int) -> torch.Tensor:
        end_pos = start_pos + inputs.shape[0]
        if self._calls is not None and end_pos > self._calls.num_positions:
            self._calls = self._learn_calls(end_pos)
        inputs = inputs.to(self.device)[None]
        if self._calls is None:
            output = self._model_forward(inputs, start_pos, num_logits)
        else:
            output = self._lean_forward(self._calls, inputs, start_pos, num_logits)
        self.cache.length = end_pos
        return output

    def _lean_forward(self, calls: LayerCalls, inputs: torch.Tensor, start_pos: int, num_logits: int) -> torch.Tensor:
        hidden = self._parts.embedding(inputs) if self.is_first else inputs
        hidden = calls.run(hidden, start_pos)[0]
        if not self.is_last:
            return hidden
        if num_logits == 0:
            return hidden.new_empty(0, self.vocab_size)
        hidden = hidden[-num_logits:]
        for module in self._parts.exit:
            hidden = module(hidden)
        return self._parts.head(hidden)

    def _model_forward(self, inputs: torch.Tensor, start_pos: int, num_logits: int) -> torch.Tensor:
        arguments = {
            "input_ids" if self.is_first else "inputs_embeds": inputs,
            "position_ids": torch.arange(start_pos, start_pos + inputs.shape[1], device=self.device)[None],
            **self._cache_arguments,
        }
        if self.is_last and num_logits:
            return self.model(**arguments, logits_to_keep=num_logits).logits[0]
        hidden = self._parts.decoder(**arguments).last_hidden_state[0]
        return hidden.new_empty(0, self.vocab_size) if self.is_last else hidden

    @torch.inference_mode()
    def _try_out(self, source: ModelSource) -> None:
        """Learn the shapes of the KV entries from one token, then how to call the layers directly.

        They are called so only if the model's own forward gives the very same numbers. Our attention stays
        only where it gives what transformers' choice does. Raises UserError where there are no KV entries.
        """
        generator = torch.Generator().manual_seed(0)
        if self.is_first:
            inputs = torch.randint(self.vocab_size, (1, 8), generator=generator).to(self.device)
        else:
            inputs = torch.randn(1, 8, self.hidden_size, generator=generator).to(self.device, self.dtype)
        ours, attention = self.model.config._attn_implementation, source.attention
        use_attention(self.model, attention)
        self._model_forward(inputs[:, :1], 0, 1)
        if not self.cache.is_probed:
            raise source.error(f"{source.model_type} cannot be rolled back: its layers keep no KV cache")
        self.cache.allocate()
        if ours is not None and ours != attention:
            expected = self._tried(self._model_forward, inputs)
            use_attention(self.model, ours)
            found = self._tried(self._model_forward, inputs)
            if found is None or expected is None or _error(found, expected) > MAX_ATTENTION_ERROR:
                use_attention(self.model, attention)
        calls = self._learn_calls(8)
        if calls is not None:
            expected = self._tried(self._model_forward, inputs)
            found = self._tried(partial(self._lean_forward, calls), inputs)
            if found is not None and expected is not None and torch.equal(found, expected):
                self._calls = calls

    def _tried(
        self, forward: Callable[[torch.Tensor, int, int], torch.Tensor], inputs: torch.Tensor
    ) -> torch.Tensor | None:
        """What `forward` gives for `inputs` in a few passes, [rows, n]; None where it does not take them."""
        rows = []
        try:
            for start, end in TRIED_PASSES:
                self.cache.length = start
                rows.append(forward(inputs[:, start:end], start, end - start))
        except torch.OutOfMemoryError:
            raise  # says nothing about the family
        except Exception:  # whatever a family's layers do not take
            return None
        return torch.cat(rows)

    def _learn_calls(self, num_positions: int) -> LayerCalls | None:
        """Run the model's forward once with recorders in place of its layers, for num_positions or more."""
        num_positions = min(self.cache.max_len, max(FIRST_POSITIONS, 2 * num_positions))
        decoder, layers_name = self._parts.decoder, self._parts.layers_name
        layers, length = getattr(decoder, layers_name), self.cache.length

        def forward(recorders: nn.ModuleList, hidden: torch.Tensor, position_ids: torch.Tensor) -> None:
            setattr(decoder, layers_name, recorders)
            self.cache.length = num_positions - hidden.shape[1]
            decoder(inputs_embeds=hidden, position_ids=position_ids, **self._cache_arguments)

        hidden = torch.zeros(1, 2, self.hidden_size, dtype=self.dtype, device=self.device)
        try:
            return record_calls(layers, forward, hidden, num_positions, query_groups(self.model.config))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a family's forward does not take; it stays in use as it is
            return None
        finally:
            self.cache.length = length
            setattr(decoder, layers_name, layers)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative difference of rows [rows, n], in the middle one: a router may send single rows elsewhere."""
    found, expected = found.float(), expected.float()
    return ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).nan_to_num(float("inf")).median().item()


def build_stage(
    source: ModelSource,
    start: int,
    end: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    max_len: int,
    progress: Callable[[int, int], None] | None = None,
) -> Stage:
    """Build the stage of layers [start, end) and read its tensors, and no others, from the checkpoint.

    `source` has been checked. `progress(done_bytes, total_bytes)` may be called from another thread.
    """
    device = torch.device(device)
    model = source.new_model(dtype, _attention(source))
    is_first, is_last = start == 0, end == source.num_layers
    families.cut_layers(model, source.decoder, start, end)
    families.drop_ends(model, source.decoder, is_first=is_first, is_last=is_last, keep_tied=True)
    tensors = {}
    for name, tensor in source.tensors.items():
        number = families.layer_number(name)
        if number is None or start <= number < end:
            tensors[families.renumbered(name, start)] = tensor
    checkpoint.load(model, tensors, device, progress)
    families.drop_ends(model, source.decoder, is_first=is_first, is_last=is_last, keep_tied=False)
    return Stage(model.eval().requires_grad_(False), source, start, end, dtype, max_len)


def _attention(source: ModelSource) -> str | None:
    """Our attention where the family's is plain scaled dot-product attention; else transformers' choice."""
    family = type(source.meta_model)
    plain = family._supports_attention_backend and family._supports_sdpa
    return ATTENTION if plain and getattr(source.config, "attn_logit_softcapping", None) is None else None
