"""Makes a model pair like the embedded one: a tokenizer, a target, and a draft distilled from it.

    python -m pearl_pp.builtin.train_pair --out DIR            (about two hours on two cores)

Counted in steps and seeded: equal steps, seed, Python and thread count give equal models. It may be stopped
at any time; started again with the same options it goes on from its last checkpoint.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pearl_pp.builtin import corpus
from pearl_pp.builtin.muon import Muon

_WARMUP_STEPS = 10
_DECAY_FROM, _DECAY_TO = 0.35, 0.02


@dataclass(frozen=True)
class PairShape:
    """Sizes of the two models; the draft starts from the target's layers `draft_layers`."""

    vocab_size: int = 2048
    hidden_size: int = 128
    inner_size: int = 352
    num_heads: int = 4
    num_kv_heads: int = 2
    num_layers: int = 16
    draft_layers: tuple[int, ...] = (0, 15)
    max_positions: int = 1024


@dataclass(frozen=True)
class Phase:
    """A run of steps with one schedule: warm-up, constant, then linear decay."""

    num_steps: int
    muon_lr: float
    adamw_lr: float

    def factor(self, step: int) -> float:
        """What both learning rates are multiplied by in `step`, counted from 0."""
        warm = min(1.0, (step + 1) / _WARMUP_STEPS)
        left = (self.num_steps - step) / max(1.0, self.num_steps * (1 - _DECAY_FROM))
        return warm * (_DECAY_TO + (1 - _DECAY_TO) * min(1.0, left))


@dataclass(frozen=True)
class Windows:
    """Batches of consecutive windows of one token stream, every window once per epoch in a seeded order."""

    tokens: Tensor
    seed: int
    rows: int = 4
    length: int = 512

    def batch(self, step: int) -> Tensor:
        """int64 [rows, length + 1] of `step`: inputs and, shifted by one, what follows them."""
        num_windows = (len(self.tokens) - 1) // self.length
        per_epoch = num_windows // self.rows
        if per_epoch == 0:
            raise ValueError(f"{len(self.tokens)} tokens are too few for {self.rows} windows of {self.length}")
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(num_windows, generator=torch.Generator().manual_seed(self.seed + epoch))
        starts = order[place * self.rows : (place + 1) * self.rows] * self.length
        return torch.stack([self.tokens[start : start + self.length + 1] for start in starts.tolist()])


Loss = Callable[[LlamaForCausalLM, Tensor], Tensor]


def next_token_loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Mean cross-entropy in nats of each window's next tokens; batch int64 [rows, length + 1]."""
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Cross-entropy of the draft's distribution on the target's; the text's own next token plays no part."""

    def loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(input_ids=batch[:, :-1], use_cache=False).logits.softmax(-1)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1))

    return loss


def new_target(shape: PairShape, seed: int) -> LlamaForCausalLM:
    """A target with random weights, a function of the shape and the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(_config(shape, shape.num_layers))


def new_draft(shape: PairShape, target: LlamaForCausalLM) -> LlamaForCausalLM:
    """A draft that starts as the target's embedding, final norm and the layers named by the shape."""
    draft = LlamaForCausalLM(_config(shape, len(shape.draft_layers)))
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    for own, origin in enumerate(shape.draft_layers):
        draft.model.layers[own].load_state_dict(target.model.layers[origin].state_dict())
    return draft


def _config(shape: PairShape, num_layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.inner_size,
        num_hidden_layers=num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        pad_token_id=corpus.PAD_ID,
        bos_token_id=corpus.BOS_ID,
        eos_token_id=corpus.EOS_ID,
    )


def _optimizers(model: LlamaForCausalLM, phase: Phase) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices; AdamW for the embedding (also the head) and the norms."""
    embedding = model.model.embed_tokens.weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
    return [
        Muon(matrices, lr=phase.muon_lr),
        torch.optim.AdamW(others, lr=phase.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(
    model: LlamaForCausalLM,
    loss: Loss,
    windows: Windows,
    phase: Phase,
    *,
    first_batch: int = 0,
    checkpoint: Path | None = None,
    checkpoint_every: int = 100,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains `model` in place for one phase and returns the loss of each step made by this call.

    Batches first_batch, first_batch + 1, ... of `windows` are used. With a checkpoint file that exists it
    goes on from there; the file is replaced every `checkpoint_every` steps and at the end.
    """
    optimizers = _optimizers(model, phase)
    start = _restore(checkpoint, model, optimizers)
    rates = [phase.muon_lr, phase.adamw_lr]
    losses: list[float] = []
    model.train()
    for step in range(start, phase.num_steps):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * phase.factor(step)
            optimizer.zero_grad(set_to_none=True)
        value = loss(model, windows.batch(first_batch + step))
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(value.item())
        if on_step:
            on_step(step + 1, losses[-1])
        if checkpoint and ((step + 1) % checkpoint_every == 0 or step + 1 == phase.num_steps):
            _save(checkpoint, model, optimizers, step + 1)
    return losses


def _save(path: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")  # a stop in the middle leaves the older file whole
    state = {"step": step, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
    torch.save(state, part)
    os.replace(part, path)


def _restore(path: Path | None, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer]) -> int:
    if path is None or not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["step"]


def save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a Hugging Face folder: bfloat16 safetensors, configs, tokenizer."""
    model.bfloat16().save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=corpus.PAD, bos_token=corpus.BOS, eos_token=corpus.EOS
    ).save_pretrained(folder)


def make_pair(
    out: Path,
    texts: list[str],
    *,
    seed: int = 0,
    shape: PairShape | None = None,
    target_phase: Phase | None = None,
    draft_phases: tuple[Phase, ...] | None = None,
    window: int = 512,
    checkpoint_every: int = 100,
    log: Callable[[str], None] = print,
) -> None:
    """Trains tokenizer, target and draft on `texts`; writes out/target, out/draft and out/checkpoints."""
    shape, target_phase = shape or PairShape(), target_phase or TARGET_PHASE
    draft_phases = draft_phases or DRAFT_PHASES
    steps = "-".join(str(phase.num_steps) for phase in (target_phase, *draft_phases))
    checkpoints = out / "checkpoints" / f"seed-{seed}-steps-{steps}"
    tokenizer = corpus.train_tokenizer(texts, shape.vocab_size)
    windows = Windows(corpus.encode(tokenizer, texts), seed, length=window)
    log(f"{len(texts)} files, {len(windows.tokens)} tokens")

    def fit(name: str, model: LlamaForCausalLM, loss: Loss, phase: Phase, first_batch: int) -> None:
        def on_step(step: int, value: float) -> None:
            if step % 50 == 0 or step == phase.num_steps:
                log(f"{name}: step {step} of {phase.num_steps}, loss {value:.3f}")

        train(
            model,
            loss,
            windows,
            phase,
            first_batch=first_batch,
            checkpoint=checkpoints / f"{name}.pt",
            checkpoint_every=checkpoint_every,
            on_step=on_step,
        )

    target = new_target(shape, seed)
    fit("target", target, next_token_loss, target_phase, 0)
    target.requires_grad_(False).eval()
    draft, done = new_draft(shape, target), 0
    for number, phase in enumerate(draft_phases):
        fit(f"draft-{number}", draft, distillation_loss(target), phase, done)
        done += phase.num_steps
    save_model(target, tokenizer, out / "target")
    save_model(draft, tokenizer, out / "draft")


TARGET_PHASE = Phase(1554, muon_lr=0.02, adamw_lr=1e-2)
DRAFT_PHASES = (Phase(2044, muon_lr=0.02, adamw_lr=3e-3), Phase(1221, muon_lr=0.012, adamw_lr=2e-3))


def main() -> None:
    """Command line: --out, --steps, --draft-steps, --seed, --checkpoint-every."""
    parser = argparse.ArgumentParser(description="Train a small target and its draft on the standard library.")
    parser.add_argument("--out", type=Path, required=True, help="folder for target/, draft/ and checkpoints/")
    parser.add_argument("--steps", type=int, default=TARGET_PHASE.num_steps, help="of the target")
    parser.add_argument("--draft-steps", type=int, nargs=2, default=[p.num_steps for p in DRAFT_PHASES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    options = parser.parse_args()
    phases = [
        Phase(steps, phase.muon_lr, phase.adamw_lr)
        for steps, phase in zip([options.steps, *options.draft_steps], [TARGET_PHASE, *DRAFT_PHASES], strict=True)
    ]
    make_pair(
        options.out,
        corpus.collect().train,
        seed=options.seed,
        target_phase=phases[0],
        draft_phases=tuple(phases[1:]),
        checkpoint_every=options.checkpoint_every,
    )


if __name__ == "__main__":
    main()
