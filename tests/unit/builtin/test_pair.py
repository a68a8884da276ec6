"""The embedded pair: what it must be for everything else to run on it."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pearl_pp import builtin
from pearl_pp.builtin.corpus import BOS_ID, EOS_ID

_MEGABYTE = 10**6
_TRAINED_POSITIONS = 512


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(builtin.TARGET_DIR)


@pytest.fixture(scope="module")
def target():
    return AutoModelForCausalLM.from_pretrained(builtin.TARGET_DIR, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def draft():
    return AutoModelForCausalLM.from_pretrained(builtin.DRAFT_DIR, dtype=torch.float32).eval()


def test_the_pair_is_small():
    files = [p for d in (builtin.TARGET_DIR, builtin.DRAFT_DIR) for p in d.iterdir()]
    assert 0 < sum(p.stat().st_size for p in files) <= 20 * _MEGABYTE


def test_the_models_share_one_tokenizer_and_special_ids(tokenizer, target, draft):
    other = AutoTokenizer.from_pretrained(builtin.DRAFT_DIR)
    assert tokenizer.get_vocab() == other.get_vocab()
    assert len(tokenizer) == target.config.vocab_size == draft.config.vocab_size
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)
    assert target.generation_config.eos_token_id == EOS_ID


@pytest.mark.parametrize("name", ["target", "draft"])
def test_the_head_is_the_embedding(name, request):
    model = request.getfixturevalue(name)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_eight_prompts_of_different_lengths_fit_the_trained_context(tokenizer):
    prompts = builtin.prompts()
    lengths = [len(tokenizer(prompt).input_ids) for prompt in prompts]
    assert len(prompts) == 8
    assert lengths == sorted(set(lengths))
    assert lengths[0] <= 30
    assert lengths[-1] >= 150
    assert lengths[-1] + 128 < _TRAINED_POSITIONS


def test_prompts_survive_the_tokenizer(tokenizer):
    for prompt in builtin.prompts():
        assert tokenizer.decode(tokenizer(prompt).input_ids) == prompt


def test_the_greedy_text_is_no_short_loop_and_the_draft_follows_it(tokenizer, target, draft):
    """On every prompt more than 20 distinct tokens in the last half; the draft agrees with most of them."""
    for prompt in builtin.prompts():
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.inference_mode():
            out = target.generate(ids, max_new_tokens=128, do_sample=False)
            guesses = draft(out).logits[0, ids.shape[1] - 1 : -1].argmax(-1)
        new = out[0, ids.shape[1] :]
        assert len(new) == 128
        assert len(set(new[64:].tolist())) > 20
        assert (guesses == new).float().mean() > 0.6
