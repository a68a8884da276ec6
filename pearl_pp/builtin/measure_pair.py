"""Measures a model pair: held-out loss, how often draft and target agree, what a pass costs.

    python -m pearl_pp.builtin.measure_pair [--target DIR --draft DIR]

One thread. Teacher-forced figures are over all held-out files of the running Python's standard library, in
windows of 512 tokens; figures on the target's own greedy text are over the built-in prompts.
"""

import argparse
import inspect
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from pearl_pp import builtin
from pearl_pp.builtin import corpus

_WINDOW = 512
_CONTEXT = 100
_NUM_NEW_TOKENS = 128


def held_out_figures(target: Any, draft: Any, stream: Tensor) -> dict[str, float]:
    """Loss of both models in nats, top-1 agreement and mean sum of min(p, q); stream int64 [n]."""
    sums = dict.fromkeys(("target_loss", "draft_loss", "agreement", "overlap"), 0.0)
    num_windows = (len(stream) - 1) // _WINDOW
    for window in range(num_windows):
        part = stream[window * _WINDOW : (window + 1) * _WINDOW + 1]
        inputs, following = part[:-1].unsqueeze(0), part[1:]
        target_logits, draft_logits = target(inputs).logits[0], draft(inputs).logits[0]
        sums["target_loss"] += functional.cross_entropy(target_logits, following).item()
        sums["draft_loss"] += functional.cross_entropy(draft_logits, following).item()
        sums["agreement"] += _agreement(target_logits, draft_logits)
        sums["overlap"] += _overlap(target_logits, draft_logits)
    return {"windows": num_windows, **{name: value / num_windows for name, value in sums.items()}}


def greedy_figures(target: Any, draft: Any, tokenizer: Any) -> list[dict[str, float]]:
    """Of each built-in prompt: its tokens, distinct tokens of the greedy continuation, agreement along it."""
    figures = []
    for text in builtin.prompts():
        prompt = tokenizer(text, return_tensors="pt").input_ids
        ids = target.generate(prompt, max_new_tokens=_NUM_NEW_TOKENS, do_sample=False)
        start = prompt.shape[1] - 1  # the row that decides the first new token
        rows = slice(start, ids.shape[1] - 1)
        agreement = _agreement(target(ids).logits[0, rows], draft(ids).logits[0, rows])
        new = ids[0, prompt.shape[1] :].tolist()
        figures.append(
            {
                "prompt_tokens": prompt.shape[1],
                "new_tokens": len(new),
                "distinct": len(set(new)),
                "distinct_of_last_half": len(set(new[len(new) // 2 :])),
                "agreement": agreement,
            }
        )
    return figures


def sampled_overlap(target: Any, draft: Any, tokenizer: Any, seed: int = 0) -> float:
    """Mean sum of min(p, q) along the target's own text at temperature 1 after the built-in prompts."""
    overlaps = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for text in builtin.prompts():
            prompt = tokenizer(text, return_tensors="pt").input_ids
            ids = target.generate(prompt, max_new_tokens=_NUM_NEW_TOKENS, do_sample=True, temperature=1.0, top_k=0)
            rows = slice(prompt.shape[1] - 1, ids.shape[1] - 1)
            overlaps.append(_overlap(target(ids).logits[0, rows], draft(ids).logits[0, rows]))
    return sum(overlaps) / len(overlaps)


def _overlap(target_logits: Tensor, draft_logits: Tensor) -> float:
    return torch.minimum(target_logits.softmax(-1), draft_logits.softmax(-1)).sum(-1).mean().item()


def _agreement(target_logits: Tensor, draft_logits: Tensor) -> float:
    return (target_logits.argmax(-1) == draft_logits.argmax(-1)).float().mean().item()


def pass_times_ms(models: dict[str, Any], num_tokens: int, rounds: int = 40) -> dict[str, tuple[float, float]]:
    """Median and tenth percentile, in ms, of a pass over `num_tokens` tokens; the models take turns."""
    caches = {name: DynamicCache() for name in models}
    # The argument's name changed between transformers releases.
    argument = "cache" if "cache" in inspect.signature(next(iter(models.values())).forward).parameters else ""
    argument = argument or "past_key_values"
    for name, model in models.items():
        model(torch.full((1, _CONTEXT), 65), **{argument: caches[name]})
    taken: dict[str, list[float]] = {name: [] for name in models}
    tokens = torch.full((1, num_tokens), 65)
    for _ in range(rounds):
        for name, model in models.items():
            start = time.perf_counter()
            model(tokens, **{argument: caches[name]})
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: (median(times), sorted(times)[len(times) // 10]) for name, times in taken.items()}


def measure(target_dir: Path, draft_dir: Path) -> dict[str, Any]:
    """All figures of a pair, float32, one thread."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(target_dir)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (target_dir, draft_dir)
    )
    stream = corpus.encode(tokenizer.backend_tokenizer, corpus.collect().held_out)
    with torch.inference_mode():
        return {
            "held_out": held_out_figures(target, draft, stream),
            "greedy": greedy_figures(target, draft, tokenizer),
            "sampled_overlap": sampled_overlap(target, draft, tokenizer),
            "pass_ms_median_and_p10": {
                num: pass_times_ms({"target": target, "draft": draft}, num) for num in (1, 5, 9)
            },
        }


def main() -> None:
    """Command line: --target and --draft; prints the figures as JSON."""
    parser = argparse.ArgumentParser(description="Measure a model pair.")
    parser.add_argument("--target", type=Path, default=builtin.TARGET_DIR)
    parser.add_argument("--draft", type=Path, default=builtin.DRAFT_DIR)
    options = parser.parse_args()
    print(json.dumps(measure(options.target, options.draft), indent=1))


if __name__ == "__main__":
    main()
