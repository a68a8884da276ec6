"""One saved model for all tests of the folder that need no particular one."""

from pathlib import Path

import pytest
import torch

from tests.unit.stages.tiny import VOCAB, full_logits, save_model, tiny_config


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_model(folder, tiny_config("llama"))
    return folder


@pytest.fixture(scope="session")
def token_ids() -> torch.Tensor:
    return torch.randint(3, VOCAB, (32,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def llama_logits(llama_dir: Path, token_ids: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    return full_logits(AutoModelForCausalLM.from_pretrained(llama_dir, dtype=torch.float32), token_ids)
