"""The prompts of an experiment: the paper's evaluation sets, the built-in prompts, or bare tokens. No torch in here.

The sets are read from the JSONL files in which they are usually passed on; none comes along. How many prompts and how
many tokens are the paper's (appendix C; the scripts of its authors), unless the experiment says otherwise.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from pearl_pp import builtin
from pearl_pp.config.reading import nearest, one_line, read_text
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.runtime.request import Prompt

DEFAULT_NUM_TOKENS_PROMPTS = 8
DEFAULT_PROMPT_LEN = 4
LARGEST_NUM_TOKENS = 5_000_000  # of all prompts of `tokens`: what memory holds with ease
NUM_SHOTS = 8  # worked examples before a question of GSM8K where the model has no chat template
QUESTION, ANSWER = "Question: ", "Answer:"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One entry of a workload.

    Args:
        id: unique in its workload.
        turns: what the user says, one after another, answers in between.
        group: language or category, where the set has some.
        intro: text before the first turn, where no chat template is used.
        labels: what stands before a turn and where its answer starts, where no chat template is used.
        token_ids: a prompt without text.
        seed: of an item that is nothing but its seed.
    """

    id: str
    turns: tuple[str, ...]
    group: str = ""
    intro: str = ""
    labels: tuple[str, str] = ("", "")
    token_ids: tuple[int, ...] | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Workload:
    """Args: max_new_tokens: of an answer, as the paper's authors ran the set; None where they did not."""

    name: str
    items: tuple[Item, ...]
    max_new_tokens: int | None = None

    def key(self, item: Item, turn: int) -> str:
        """The name of a prompt in the records; `turn` from 0: `mt_bench/81/2`, `gsm8k/7`."""
        return "/".join([self.name, item.id, *([str(turn + 1)] if len(item.turns) > 1 else [])])


@dataclass(frozen=True)
class _Set:
    """An evaluation set: what one line of its file must hold, and the paper's sample.

    Args:
        fields: names of the texts that each line has.
        item: from a line and its number (from 0).
    """

    fields: tuple[str, ...]
    item: Callable[[Row, int], Item]
    num_prompts: int
    max_new_tokens: int
    leaves_out: str = ""  # a group that is not part of the sample


def _humaneval(row: Row, number: int) -> Item:
    return Item(str(row["task_id"]).split("/")[-1], (row["prompt"].strip(),))


def _gsm8k(row: Row, number: int) -> Item:
    return Item(str(number), (row["question"],), labels=(QUESTION, ANSWER))


def _mgsm(row: Row, number: int) -> Item:
    return Item(str(row.get("question_id", number)), (row["question"],), row["category"], labels=(QUESTION, ANSWER))


def _mt_bench(row: Row, number: int) -> Item:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError('needs "turns", a list of texts')
    name = str(row.get("question_id", number))
    if "/" in name:  # 81/2 would be the second turn of 81, too
        raise ValueError(f"{one_line(name)} is no name of a question: it holds a /")
    return Item(name, tuple(turns), row["category"], labels=(QUESTION, ANSWER))


SETS: dict[str, _Set] = {
    "humaneval": _Set(("task_id", "prompt"), _humaneval, num_prompts=164, max_new_tokens=1024),
    "gsm8k": _Set(("question", "answer"), _gsm8k, num_prompts=100, max_new_tokens=512),
    # Ten languages times ten; English is GSM8K itself. The authors' scripts name no length for it: GSM8K's.
    "mgsm": _Set(("question", "category"), _mgsm, num_prompts=100, max_new_tokens=512, leaves_out="english"),
    "mt_bench": _Set(("category",), _mt_bench, num_prompts=80, max_new_tokens=512),
}
WORKLOADS = ("builtin", *SETS, "tokens")


def load_workload(
    name: str, file: str | None = None, num_prompts: int | None = None, prompt_len: int = DEFAULT_PROMPT_LEN
) -> Workload:
    """The workload of that name.

    Args:
        file: of an evaluation set, JSONL.
        num_prompts: None: the paper's, or all there are. Fewer are spread evenly over the set's groups.
        prompt_len: tokens of a prompt of `tokens`, which has no text.

    Raises:
        UserError: no such workload, or a file that is missing or malformed; one line with the file's line.
    """
    if name in SETS:
        if file is None:
            raise UserError(_option(name), None, "needs the set's JSONL file: give file: PATH")
        return _read_set(name, file, num_prompts)
    if name not in WORKLOADS:
        hint = nearest(name, WORKLOADS) or f"; there are {', '.join(WORKLOADS)}"
        raise UserError("workload name", name, f"no such workload{hint}")
    if file is not None:
        raise UserError(_option(name), file, "is read from no file")
    if name == "builtin":
        items = tuple(Item(str(number), (text,)) for number, text in enumerate(builtin.prompts()))
        return Workload(name, _chosen(items, num_prompts, _option(name), "the package"))
    seeds = range(DEFAULT_NUM_TOKENS_PROMPTS if num_prompts is None else num_prompts)
    if len(seeds) * prompt_len > LARGEST_NUM_TOKENS:
        raise UserError(_option(name), prompt_len, f"{len(seeds)} prompts of that length are too many tokens")
    return Workload(name, tuple(Item(str(seed), ("",), token_ids=(0,) * prompt_len, seed=seed) for seed in seeds))


def prompt_for(item: Item, turn: int, answers: Sequence[str], chat: bool, params: SamplingParams) -> Prompt:
    """What is asked in a turn (from 0) of an item.

    Args:
        answers: what the target said in the turns before; the same for every way of decoding, which are all lossless.
        chat: for a model with a chat template, as messages; else as plain text for the model to go on with.
    """
    if item.token_ids is not None:
        seeded = params.model_copy(update={"seed": item.seed})
        return Prompt(token_ids=item.token_ids, params=seeded)
    if chat:
        messages = [{"role": "user", "content": item.turns[0]}]
        for answer, text in zip(answers[:turn], item.turns[1:], strict=False):
            messages += [{"role": "assistant", "content": answer.strip()}, {"role": "user", "content": text}]
        return Prompt(messages=tuple(messages), params=params, chat=True)
    return Prompt(text=_plain(item, turn, answers), params=params)


def wants_chat(chat: bool | str, target: str | None) -> bool:
    """Whether prompts go into a chat template: as asked, or with "auto" where the target's folder has one."""
    if isinstance(chat, bool):
        return chat
    folder = builtin.TARGET_DIR if target is None else Path(target)
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):  # whoever loads the model says what is wrong with its folder
        return False


def _plain(item: Item, turn: int, answers: Sequence[str]) -> str:
    before, after = item.labels
    answered = [f" {answer.strip()}\n\n" for answer in answers[:turn]]
    asked = [f"{before}{text}\n\n{after}" if after else text for text in item.turns[: turn + 1]]
    return item.intro + "".join(part for pair in zip(asked, [*answered, ""], strict=True) for part in pair)


def _read_set(name: str, file: str, num_prompts: int | None) -> Workload:
    chosen, option = SETS[name], _option(name)
    rows = [_checked(option, file, number, line, chosen) for number, line in _lines(option, file)]
    items = tuple(item for _, item in rows if item.group != chosen.leaves_out or not item.group)
    if not items:
        raise UserError(option, file, "holds no prompt")
    repeated = [item_id for item_id, times in Counter(item.id for item in items).items() if times > 1]
    if repeated:
        raise UserError(option, file, f"{one_line(repeated[0])} is there twice")
    sample = min(chosen.num_prompts, len(items)) if num_prompts is None else num_prompts
    items = _chosen(items, sample, option, file)
    if name == "gsm8k":
        start = max(chosen.num_prompts, sample)
        intro = "".join(map(_worked_example, (row for row, _ in rows[start : start + NUM_SHOTS])))
        items = tuple(replace(item, intro=intro) for item in items)
    return Workload(name, items, chosen.max_new_tokens)


def _lines(option: str, file: str) -> list[tuple[int, str]]:
    # Not splitlines(): JSON may hold characters that Python counts as line ends.
    return [(n, line) for n, line in enumerate(read_text(option, file).split("\n"), start=1) if line.strip()]


def _checked(option: str, file: str, number: int, line: str, chosen: _Set) -> tuple[Row, Item]:
    """The object on a line and its item; raises UserError naming the line."""
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("must be an object")
        for field in chosen.fields:
            if not isinstance(row.get(field), str) or not row[field].strip():
                raise ValueError(f'needs "{field}", a text')
        item = chosen.item(row, number - 1)
        for text in (item.id, *item.turns, *(row[field] for field in chosen.fields)):
            text.encode("utf-8")
        return row, item
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        reason = "is nested too deeply"
    except UnicodeEncodeError:
        reason = "is not Unicode text (half a surrogate pair)"
    except ValueError as error:
        reason = str(error)
    raise UserError(option, file, f"line {number}: {reason}")


def _chosen(items: tuple[Item, ...], num_prompts: int | None, option: str, source: str) -> tuple[Item, ...]:
    """`num_prompts` items, one of each group after another, in the file's order."""
    if num_prompts is None:
        return items
    if num_prompts > len(items):
        raise UserError(f"{option} num_prompts", num_prompts, f"there are {len(items)} in {source}")
    turn_of: defaultdict[str, count[int]] = defaultdict(count)
    order = sorted(range(len(items)), key=[next(turn_of[item.group]) for item in items].__getitem__)
    return tuple(items[index] for index in sorted(order[:num_prompts]))


def _worked_example(row: Row) -> str:
    """A question of GSM8K with its solution, without the marks of a calculator in it."""
    steps, _, result = re.sub(r"<<[^>]*>>", "", row["answer"]).partition("####")
    return f"{QUESTION}{row['question']}\n\n{ANSWER} {steps.strip()} The answer is {result.strip()}.\n\n"


def _option(name: str) -> str:
    return f"workload {name}"
