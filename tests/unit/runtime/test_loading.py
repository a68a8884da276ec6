"""What is checked before weights are read, and what lands on which rank."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.memory import RankBytes
from pearl_pp.runtime.loading import agree, build_rank, gather_notes, open_pair, pick_dtype, settle_dtype
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.transport.inprocess import InProcessGroup, InProcessTransport
from tests.pairs import save_pair
from tests.unit.runtime.word_models import save_with_words, word_tokenizer

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def open_words(folders: tuple[Path, Path], num_ranks: int = 2, **options: object) -> ModelPair:
    models = {"target": str(folders[0])}
    if options.get("strategy") != "ar":
        models["draft"] = str(folders[1])
    return open_pair(RunConfig(**(models | options)), num_ranks, CPU)


@pytest.fixture
def fresh(tmp_path: Path) -> tuple[Path, Path]:
    """Folders to spoil."""
    target, draft = (save_with_words(tmp_path / name, word_tokenizer()) for name in ("target", "draft"))
    return target, draft


class TestDtype:
    @pytest.mark.parametrize("checkpoint", [torch.float32, torch.float16, torch.bfloat16])
    def test_auto_on_a_cpu_is_float32(self, checkpoint: torch.dtype) -> None:
        assert pick_dtype("auto", checkpoint, CPU) is torch.float32

    @pytest.mark.parametrize(
        ("checkpoint", "has_bf16", "expected"),
        [
            (torch.float32, True, torch.float32),
            (torch.float16, True, torch.float16),
            (torch.bfloat16, True, torch.bfloat16),
            (torch.bfloat16, False, torch.float16),
        ],
    )
    def test_auto_on_a_gpu_is_the_checkpoints_where_the_card_can(
        self, checkpoint: torch.dtype, has_bf16: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
        assert pick_dtype("auto", checkpoint, GPU) is expected

    @pytest.mark.parametrize("device", [CPU, GPU])
    @pytest.mark.parametrize("option", ["float32", "float16", "bfloat16"])
    def test_what_the_user_says_goes(self, option: str, device: torch.device) -> None:
        assert pick_dtype(option, torch.float32, device) is getattr(torch, option)


class TestOneDtype:
    """What ranks make of the dtypes that each has picked for itself."""

    @staticmethod
    def settled(
        picked: list[torch.dtype], checkpoint: torch.dtype, pair: ModelPair, option: str = "auto", device: str = "cuda"
    ) -> tuple[set[torch.dtype], str]:
        source = replace(pair.target)
        source.__dict__["dtype"] = checkpoint

        def work(transport: InProcessTransport, mine: ModelPair) -> tuple[ModelPair, str]:
            transport.device = torch.device(device)
            return settle_dtype(transport, mine, option)

        answers = on_ranks([replace(pair, target=source, dtype=dtype) for dtype in picked], work)
        reasons = {reason for _, reason in answers}
        assert len(reasons) == 1, "ranks give different reasons"
        return {mine.dtype for mine, _ in answers}, reasons.pop()

    @pytest.mark.parametrize(
        ("lacking", "named"), [((1,), "rank 1"), ((0, 2), "ranks 0, 2"), ((0, 1, 2), "ranks 0, 1, 2")]
    )
    def test_one_card_without_bfloat16_makes_all_ranks_take_float16(
        self, lacking: tuple[int, ...], named: str, word_pair: ModelPair
    ) -> None:
        picked = [torch.float16 if rank in lacking else torch.bfloat16 for rank in range(3)]
        dtypes, reason = self.settled(picked, torch.bfloat16, word_pair)
        assert dtypes == {torch.float16}
        assert reason == f"auto: the checkpoint is bfloat16, which {named} cannot compute in"

    @pytest.mark.parametrize("checkpoint", [torch.float32, torch.float16, torch.bfloat16])
    def test_where_all_cards_can_it_is_the_checkpoints(self, checkpoint: torch.dtype, word_pair: ModelPair) -> None:
        assert self.settled([checkpoint] * 3, checkpoint, word_pair) == ({checkpoint}, "auto: the checkpoint's")

    def test_on_cpus_and_where_one_is_given(self, word_pair: ModelPair) -> None:
        float32 = [torch.float32] * 2
        assert self.settled(float32, torch.bfloat16, word_pair, device="cpu") == ({torch.float32}, "auto on a CPU")
        half = [torch.float16] * 2
        assert self.settled(half, torch.bfloat16, word_pair, option="float16") == ({torch.float16}, "as given")


class TestOpening:
    def test_a_pair_and_what_follows_from_it(self, word_folders: tuple[Path, Path]) -> None:
        pair = open_words(word_folders, max_model_len=40, dtype="bfloat16")
        assert (pair.max_len, pair.dtype, pair.strategy) == (40, torch.bfloat16, "pearl")
        assert pair.vocabulary.size == 20
        assert pair.placement.name == "auto"
        json.dumps(pair.header())

    def test_the_context_is_the_targets_unless_said_otherwise(self, word_folders: tuple[Path, Path]) -> None:
        assert open_words(word_folders).max_len == 64
        assert open_words(word_folders, max_model_len=64).max_len == 64
        with pytest.raises(UserError, match=r"^--max-model-len 65: is more than the target's 64 positions$"):
            open_words(word_folders, max_model_len=65)

    def test_pearl_on_one_rank_is_sd(self, word_folders: tuple[Path, Path]) -> None:
        pair = open_words(word_folders, num_ranks=1)
        assert (pair.strategy, pair.placement.name) == ("sd", "sd")

    def test_without_speculation_no_draft_is_opened(self, fresh: tuple[Path, Path]) -> None:
        (fresh[1] / "config.json").unlink()
        assert open_words(fresh, strategy="ar").draft is None

    @pytest.mark.parametrize("option", ["target", "draft"])
    def test_a_folder_that_is_no_model_is_one_line(self, option: str, fresh: tuple[Path, Path]) -> None:
        folders = dict(zip(("target", "draft"), fresh, strict=True))
        (folders[option] / "config.json").unlink()
        with pytest.raises(UserError) as caught:
            open_words(fresh)
        assert str(caught.value) == f"--{option} {folders[option]}: no config.json in this folder"
        missing = folders[option] / "nowhere"
        with pytest.raises(UserError) as caught:
            open_words(fresh, **{option: str(missing)})
        assert str(caught.value) == f"--{option} {missing}: no such folder"

    @pytest.mark.parametrize("option", ["target", "draft"])
    def test_a_checkpoint_that_lacks_a_tensor_is_one_line(self, option: str, fresh: tuple[Path, Path]) -> None:
        folder = fresh[option == "draft"]
        file = folder / "model.safetensors"
        tensors = load_file(file)
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, file, metadata={"format": "pt"})
        with pytest.raises(UserError) as caught:
            open_words(fresh)
        reason = "tensors missing from the checkpoint: model.layers.1.mlp.up_proj.weight"
        assert str(caught.value) == f"--{option} {folder}: {reason}"

    @pytest.mark.case("P5")
    def test_more_stages_than_layers_are_refused_before_weights(self, fresh: tuple[Path, Path]) -> None:
        (fresh[0] / "model.safetensors").unlink()
        with pytest.raises(UserError, match=r"^--nproc-per-node 3: the target has 2 layers, too few for 3 pipeline"):
            open_words(fresh, num_ranks=3)


def on_ranks(pairs: list[ModelPair], work) -> list:
    group = InProcessGroup(len(pairs), 10.0, None, True)

    def run(transport: InProcessTransport) -> object:
        return work(transport, pairs[transport.rank])

    return group.run(run)


class TestAgreement:
    def test_equal_pairs_agree(self, word_pair: ModelPair) -> None:
        assert on_ranks([word_pair] * 3, agree) == [None] * 3

    def test_the_rank_that_differs_is_named_on_every_rank(self, word_pair: ModelPair) -> None:
        said = []

        def work(transport: InProcessTransport, pair: ModelPair) -> None:
            with pytest.raises(UserError) as caught:
                agree(transport, pair)
            said.append(str(caught.value))

        on_ranks([word_pair, word_pair, replace(word_pair, max_len=40)], work)
        assert said == ["rank 2: has max_len 40, rank 0 has 64"] * 3


def expected_bytes(pair: ModelPair, layers: int, *, ends: int) -> int:
    """Weights and KV of `layers` layers of the tiny Llama, and `ends` of embedding and head."""
    config = pair.target.config
    hidden, inner = config.hidden_size, config.intermediate_size
    kv = hidden * config.num_key_value_heads // config.num_attention_heads
    per_layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden
    entries = 2 * kv * pair.max_len
    return 4 * (layers * (per_layer + entries) + ends * config.vocab_size * hidden)


def weights_and_entries(planned: RankBytes) -> int:
    weights = planned.target_weights + planned.draft_weights + planned.tied_copy
    return weights + planned.target_kv + planned.draft_kv


class TestRanks:
    def test_a_rank_holds_what_the_placement_puts_there(self, tmp_path: Path) -> None:
        folders = save_pair(tmp_path, "tiny", num_hidden_layers=5)
        pair = open_words(folders, num_ranks=3, placement="dedicated")
        modules = [build_rank(pair, rank, CPU) for rank in range(3)]
        stages = [(m.target.start, m.target.end) for m in modules if m.target]
        assert stages == [(0, 3), (3, 5)]
        assert modules[2].target is None
        assert [list(m.shards) for m in modules] == [[], [], [0]]

    def test_progress_names_what_is_read_and_ends_at_the_total(self, word_pair: ModelPair) -> None:
        seen: dict[str, list[tuple[int, int]]] = {}
        build_rank(word_pair, 0, CPU, lambda what, done, total: seen.setdefault(what, []).append((done, total)))
        assert list(seen) == ["target layers 0-0", "draft layers 0-1"]
        for steps in seen.values():
            assert steps == sorted(steps)
            assert steps[-1][0] == steps[-1][1]

    @pytest.mark.case("M1")
    def test_a_draft_on_rank_1_counts_with_its_cache_and_its_ends_on_that_rank(self, tmp_path: Path) -> None:
        target, draft = save_pair(tmp_path, "tiny", num_hidden_layers=6, max_position_embeddings=100)
        file = tmp_path / "placement.yaml"
        file.write_text("target: [2, 2, 2]\nreplicas: [[{rank: 1, layers: [0, 2]}]]\n")
        pair = open_words((target, draft), num_ranks=3, placement=str(file))
        norm = 4 * pair.target.hidden_size
        first, middle, last = map(weights_and_entries, pair.planned_bytes())
        assert first == expected_bytes(pair, 2, ends=1)
        assert last == expected_bytes(pair, 2, ends=1) + norm
        assert middle == expected_bytes(pair, 4, ends=2) + norm

    def test_every_rank_knows_which_ranks_are_not_lean(self, word_pair: ModelPair) -> None:
        modules = [build_rank(word_pair, rank, CPU) for rank in range(2)]
        gather = lambda transport, _: gather_notes(transport, modules[transport.rank])  # noqa: E731
        assert on_ranks([word_pair] * 2, gather) == [[], []]
        modules[1].target._calls = None
        said = on_ranks([word_pair] * 2, gather)
        assert said == [["rank 1: layers are run by the model's own forward"]] * 2

    @pytest.mark.case("A1", "M1")
    def test_a_tied_head_counts_on_both_ends(self, tmp_path: Path) -> None:
        folders = save_pair(tmp_path, "self", tie_word_embeddings=True)
        pair = open_words(folders, num_ranks=2, strategy="ar")
        first, last = pair.planned_bytes()
        assert weights_and_entries(first) == expected_bytes(pair, 2, ends=1)
        assert weights_and_entries(last) == weights_and_entries(first) + 4 * pair.target.hidden_size
        assert (first.tied_copy, last.tied_copy) == (0, 4 * pair.target.config.vocab_size * pair.target.hidden_size)
