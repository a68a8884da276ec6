"""Makes a draft that is always wrong: the embedded one with its head negated.

    python -m pearl_pp.builtin.wrong_draft FOLDER

What a run does with such a draft is what it does where speculation cannot help.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from pearl_pp import builtin


def make_wrong_draft(folder: Path) -> None:
    """Its likeliest token is the one that was least likely."""
    shutil.copytree(builtin.DRAFT_DIR, folder, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(builtin.DRAFT_DIR, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(-model.model.embed_tokens.weight.detach().clone())
    model.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pearl_pp.builtin.wrong_draft FOLDER")
    make_wrong_draft(Path(sys.argv[1]))
