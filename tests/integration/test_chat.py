"""Chat templates are applied once, and text that is shown while it is made is the final text."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from pearl_pp import PearlPP, Prompt, SamplingParams
from pearl_pp.transport.base import Transport
from tests.chains import save_chains
from tests.integration.commands import command
from tests.rank_pool import shared_pool
from tests.unit.decoding.toy_tokenizers import byte_level
from tests.unit.runtime.word_models import save_with_words, word_tokenizer

# Writes the BOS itself, takes turns of two roles only, and opens the answer with w3.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no role ' + m.role) }}{% endif %}"
    " w2 {{ m.content }}{% endfor %}{% if add_generation_prompt %} w3{% endif %}"
)


@pytest.mark.case("T1")
def test_messages_and_chat_go_through_the_template_once_with_one_bos(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(adds_bos=True, chat_template=TEMPLATE)
    folders = [save_with_words(tmp_path / name, tokenizer) for name in ("target", "draft")]
    turns = [{"role": "user", "content": "w4 w5"}, {"role": "assistant", "content": "w6"}]
    lines = [
        {"messages": [*turns, {"role": "user", "content": "w7"}]},
        {"prompt": "w8"},
        {"messages": [{"role": "system", "content": "w4"}]},
        {"prompt": "w9", "max_new_tokens": 3},
    ]
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.json"
    prompts.write_text("\n".join(map(json.dumps, lines)))
    models = ("--target", str(folders[0]), "--draft", str(folders[1]), "--max-new-tokens", "4")
    finished = command("pearl_pp.run", "--prompts", str(prompts), "--chat", "--json", str(out), *models)
    assert finished.exit_code == 1
    refusal = "messages: the tokenizer's chat template refuses them: no role system"
    assert finished.stderr == f"error in prompt 3: {refusal}\n"
    requests = json.loads(out.read_text())["requests"]
    assert [request["prompt_token_ids"] for request in requests] == [
        [1, 2, 4, 5, 2, 6, 2, 7, 3],
        [1, 2, 8, 3],
        [],
        [1, 2, 9, 3],
    ]
    rendered = tokenizer.apply_chat_template(lines[0]["messages"], add_generation_prompt=True, return_dict=False)
    assert requests[0]["prompt_token_ids"] == rendered
    assert [request["error"] for request in requests] == [None, None, refusal, None]
    assert [request["prompt"] for request in requests] == ["w7", "w8", "w4", "w9"]


SIGNS = "日本é🙂ñ\n "


def byte_scores(sharpness: float) -> torch.Tensor:
    """A chain over bytes that writes SIGNS in any order, so that windows end within characters."""
    scores = torch.full((len(byte_level()), len(byte_level())), -100.0)
    firsts = [sign.encode()[0] for sign in SIGNS]
    for sign in SIGNS:
        for byte, after in pairwise(sign.encode()):
            scores[byte, after] = 1.0
        last = sign.encode()[-1]
        for rank, first in enumerate(firsts):
            scores[last, first] = sharpness * (rank % 3)
    return scores


def streamed(transport: Transport, folders: tuple[str, str], options: dict) -> tuple[list[str], str, list[int]]:
    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], **options)
    params = SamplingParams(max_new_tokens=61, ignore_eos=True, temperature=1.0, seed=2, stop=("🙂" * 6,))
    prompts = [Prompt(token_ids=(SIGNS.encode()[2],), params=params)]
    pieces: list[str] = []
    (output,) = engine.iterate(prompts, lambda _, piece: pieces.append(piece))
    engine.close()
    return pieces, output.text, output.token_ids


@pytest.fixture(scope="module")
def byte_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("bytes")
    folders = save_chains(root, byte_scores(0.1), byte_scores(1.0), num_layers=2)
    for folder in folders:
        byte_level().save_pretrained(folder)
    return str(folders[0]), str(folders[1])


@pytest.mark.parametrize(
    "options",
    [{"gamma": 1}, {"gamma": 3}, {"gamma": 6, "verify_interval": 1, "placement": "single"}, {"strategy": "ar"}],
    ids=str,
)
def test_the_stream_is_the_final_text_and_never_half_a_character(options: dict, byte_folders: tuple[str, str]) -> None:
    pieces, text, ids = shared_pool(2).run(streamed, byte_folders, options, timeout_s=60.0)[0]
    assert "".join(pieces) == text
    assert len(pieces) > 3 and len(set(text)) > 3
    assert text.rstrip("\ufffd") == bytes(ids).decode(errors="ignore"), "one id is one byte"
    assert not any("\ufffd" in piece for piece in pieces[:-1])
