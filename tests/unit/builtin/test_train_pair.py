"""The training script, on a model of seconds: it learns, it repeats itself, it goes on where it stopped."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pearl_pp.builtin import train_pair
from pearl_pp.builtin.muon import orthogonalize
from pearl_pp.builtin.train_pair import PairShape, Phase, Windows

_SHAPE = PairShape(
    vocab_size=300,
    hidden_size=32,
    inner_size=48,
    num_heads=2,
    num_kv_heads=1,
    num_layers=3,
    draft_layers=(0, 2),
)
_TEXTS = [Path(train_pair.__file__).read_text(encoding="utf-8")] * 2


def _make(out, *, seed=0, **options):
    phases = {
        "target_phase": Phase(24, 0.02, 1e-2),
        "draft_phases": (Phase(6, 0.02, 3e-3), Phase(4, 0.01, 2e-3)),
    }
    lines: list[str] = []
    train_pair.make_pair(
        out,
        _TEXTS,
        seed=seed,
        shape=_SHAPE,
        window=48,
        checkpoint_every=4,
        log=lines.append,
        **{**phases, **options},
    )
    return {name: load_file(out / name / "model.safetensors") for name in ("target", "draft")}


def _equal(a, b):
    return all(a[m].keys() == b[m].keys() and all(torch.equal(a[m][k], b[m][k]) for k in a[m]) for m in a)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    out = tmp_path_factory.mktemp("pair")
    return out, _make(out)


def test_the_pair_loads_as_a_hugging_face_model(pair):
    out, _ = pair
    tokenizer = AutoTokenizer.from_pretrained(out / "draft")
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    for name, layers in (("target", 3), ("draft", 2)):
        model = AutoModelForCausalLM.from_pretrained(out / name)
        assert model.config.num_hidden_layers == layers
        assert model.dtype == torch.bfloat16


def test_one_seed_gives_one_pair_and_another_seed_another(pair, tmp_path):
    assert _equal(pair[1], _make(tmp_path / "same"))
    assert not _equal(pair[1], _make(tmp_path / "other", seed=1))


def test_a_run_that_was_stopped_goes_on_to_the_same_pair(pair, tmp_path, monkeypatch):
    """Stopped in the target's 11th step, after the checkpoint of step 8."""
    real, calls = train_pair.next_token_loss, []

    def stops(model, batch):
        calls.append(0)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return real(model, batch)

    monkeypatch.setattr(train_pair, "next_token_loss", stops)
    with pytest.raises(KeyboardInterrupt):
        _make(tmp_path)
    assert _equal(pair[1], _make(tmp_path))
    assert len(calls) == 11 + 24 - 8


def test_the_losses_fall():
    """Of the target on text, and of the draft on what the target says."""
    tokens = torch.arange(4000) % 7 + 3
    windows = Windows(tokens, seed=0, length=48)
    target = train_pair.new_target(_SHAPE, seed=0)
    losses = train_pair.train(target, train_pair.next_token_loss, windows, Phase(30, 0.02, 1e-2))
    assert losses[-1] < losses[0] / 4

    draft = train_pair.new_draft(_SHAPE, target)
    distil = train_pair.distillation_loss(target)
    losses = train_pair.train(draft, distil, windows, Phase(20, 0.02, 3e-3))
    assert losses[-1] < losses[0]
    batch = windows.batch(0)[:, :-1]
    assert (draft(batch).logits.argmax(-1) == target(batch).logits.argmax(-1)).float().mean() > 0.9


def test_a_phase_takes_the_batches_after_those_of_the_phase_before():
    windows = Windows(torch.arange(8 * 10 + 1) % 9 + 3, seed=3, rows=1, length=10)
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return train_pair.next_token_loss(model, batch)

    train_pair.train(train_pair.new_target(_SHAPE, 0), loss, windows, Phase(2, 0.02, 1e-2), first_batch=5)
    assert torch.equal(torch.cat(seen), torch.cat([windows.batch(5), windows.batch(6)]))


def test_windows_show_every_token_once_an_epoch():
    windows = Windows(torch.arange(8 * 10 + 1), seed=3, rows=2, length=10)
    epoch = torch.cat([windows.batch(step) for step in range(4)])
    assert epoch[:, :-1].flatten().sort().values.tolist() == list(range(80))
    assert torch.equal(epoch[:, 1:], epoch[:, :-1] + 1)
    assert not torch.equal(windows.batch(0), windows.batch(4))


def test_the_rates_warm_up_stay_and_fall():
    phase = Phase(1000, 0.02, 1e-2)
    factors = [phase.factor(step) for step in range(1000)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:350] == pytest.approx([1.0] * 341)
    assert factors[-1] == pytest.approx(0.02, abs=2e-3)
    assert factors[349:] == sorted(factors[349:], reverse=True)


@pytest.mark.parametrize("shape", [(2, 8, 20), (2, 20, 8)])
def test_steps_on_matrices_are_nearly_orthogonal(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.3
