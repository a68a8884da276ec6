"""What is wrong with a profile is one line that names the file, the key and the reason."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.config import read_profile
from pearl_pp.errors import UserError
from pearl_pp.runtime.emulation import EmulatedPair
from tests.unit.simulation.machines import profile, profile_content


def message_of(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError) as error:
        read_profile(str(path))
    message = str(error.value)
    prefix = f"--emulate {path}: "
    assert message.startswith(prefix) and "\n" not in message
    return message.removeprefix(prefix)


LINK = {"latency_us": 1, "bandwidth_gb_s": 1}
MATRIX = [[None if i == j else dict(LINK) for j in range(5)] for i in range(5)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target__pass_ms": 0}, "target.pass_ms 0: must be greater than or equal to 0.0001"),
        ({"target__pass_ms": float("nan")}, "target.pass_ms nan: must be a finite number"),
        ({"draft__pass_ms": "fast"}, "draft.pass_ms fast: must be a number"),
        ({"draft__pass_ms": True}, "draft.pass_ms True: must be a number"),
        ({"target__pass_ms": []}, "target.pass_ms []: must have at least 1 item"),
        ({"target__pass_ms": [5, 0]}, "target.pass_ms[1] 0: must be greater than or equal to 0.0001"),
        ({"draft__pass_ms": [5, "x"]}, "draft.pass_ms[1] x: must be a number"),
        ({"draft__pass_ms": {"a": 1}}, "draft.pass_ms {'a': 1}: must be a number"),
        ({"draft__extra_token_ms": -1}, "draft.extra_token_ms -1: must be greater than or equal to 0"),
        ({"target__num_layers": 1.5}, "target.num_layers 1.5: must be a whole number"),
        ({"draft__num_layer": 4}, "draft.num_layer: no such key; did you mean num_layers?"),
        ({"acceptence": 0.5}, "acceptence: no such key; did you mean acceptance?"),
        ({"acceptance": 1.2}, "acceptance 1.2: must be less than or equal to 1"),
        ({"acceptance": -0.1}, "acceptance -0.1: must be greater than or equal to 0"),
        ({"ranks__speed": [1, 1]}, "ranks: memory_gb has 5 entries, speed has 2"),
        ({"ranks__speed": [1, 1, 0, 1, 1]}, "ranks.speed[2] 0: must be greater than or equal to 0.0001"),
        ({"link": {"latency_us": -1, "bandwidth_gb_s": 1}}, "link.latency_us -1: must be greater than or equal to 0"),
        ({"link": {"latency_us": 1}}, "link.bandwidth_gb_s: is missing"),
        ({"link": MATRIX[:4]}, "link: must be one entry or 5 rows of 5 entries"),
        ({"link": [[None] * 5, *MATRIX[1:]]}, "link[0][1]: is missing"),
        (
            {"link": [[None, {"latency_us": 1, "bandwidth_gb_s": 0}, *MATRIX[0][2:]], *MATRIX[1:]]},
            "link[0][1].bandwidth_gb_s 0: must be greater than or equal to 0.001",
        ),
    ],
)
def test_an_impossible_number_names_file_key_and_reason(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert message_of(tmp_path, profile_content(**changes)) == expected


@pytest.mark.parametrize("key", ["name", "target", "ranks", "link", "acceptance", "prefill_tokens_per_s"])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    content = {name: value for name, value in profile_content().items() if name != key}
    assert message_of(tmp_path, content) == f"{key}: is missing"


def test_a_missing_nested_key_is_named(tmp_path: Path) -> None:
    content = profile_content()
    del content["target"]["vocab_size"]
    assert message_of(tmp_path, content) == "target.vocab_size: is missing"


def test_a_matrix_gives_each_pair_its_own_link(tmp_path: Path) -> None:
    matrix = [list(row) for row in MATRIX]
    matrix[0][1] = {"latency_us": 50, "bandwidth_gb_s": 1}
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(profile_content(link=matrix)))
    found = read_profile(str(path))
    assert found.link_s(0, 1, 1000) == pytest.approx(51e-6)
    assert found.link_s(1, 0, 1000) == pytest.approx(2e-6)
    assert found.link_s(2, 2, 1000) == 0.0


def test_no_such_file() -> None:
    with pytest.raises(UserError, match=r"^--emulate nowhere.yaml: no such file$"):
        read_profile("nowhere.yaml")


def test_a_key_that_looks_like_a_type_is_named(tmp_path: Path) -> None:
    content = yaml.safe_load(Path("configs/profiles/even_c8.yaml").read_text())
    path = tmp_path / "odd.yaml"
    for changed in (content | {"[": 1}, content | {"target": content["target"] | {"[": 1}}):
        path.write_text(yaml.safe_dump(changed))
        with pytest.raises(UserError, match=r"\[: no such key"):
            read_profile(str(path))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"draft__pass_ms": 1e-300}, "draft.pass_ms 1e-300: must be greater than or equal to"),
        ({"target__pass_ms": 1e300}, "target.pass_ms 1e+300: must be less than or equal to"),
        ({"target__hidden_size": 10**400}, "target.hidden_size 1000"),
        ({"target__num_layers": 10**9}, "target.num_layers 1000000000: must be less than or equal to"),
        ({"draft__extra_token_ms": 1e300}, "draft.extra_token_ms 1e+300: must be less than or equal to"),
        ({"prefill_tokens_per_s": 1e300}, "prefill_tokens_per_s 1e+300: must be less than or equal to"),
        ({"link": {"latency_us": 1, "bandwidth_gb_s": 1e-320}}, "link.bandwidth_gb_s 1e-320: must be greater than or"),
        ({"ranks__memory_gb": [1] * 2000, "ranks__speed": [1] * 2000}, "ranks.memory_gb ["),
        (
            {"draft__pass_ms": 0.001},
            "pass_ms: a pass of the target takes 4e+04 of the draft's; at least 0.01, at most 10000",
        ),
        (
            {"draft__pass_ms": 1e6},
            "pass_ms: a pass of the target takes 4e-05 of the draft's; at least 0.01, at most 10000",
        ),
    ],
)
def test_a_number_beyond_any_machine_is_refused(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert message_of(tmp_path, profile_content(**changes)).startswith(expected)


@given(
    times=st.sampled_from([(1e7, 1e5), (1e-4, 1e-4), (1e7, 1e7), (0.01, 1e-4)]),
    rate=st.sampled_from([1e-3, 1e15]),
    sizes=st.sampled_from([1, 10**9]),
    more=st.sampled_from([0, 1e9]),
    speed=st.sampled_from([1e-4, 1e4]),
)
def test_numbers_at_the_bounds_have_times_that_can_be_added(
    times: tuple[float, float], rate: float, sizes: int, more: float, speed: float
) -> None:
    found = profile(
        target__pass_ms=times[0], draft__pass_ms=times[1], prefill_tokens_per_s=rate, ranks__speed=[speed] * 5,
        target__hidden_size=sizes, draft__kv_bytes_per_token=sizes, draft__extra_token_ms=more,
        link={"latency_us": more, "bandwidth_gb_s": rate},
    )  # fmt: skip
    seconds = [found.target_pass_s(0, 2, 10**6), found.draft_pass_s(1, 2, 10**6), found.link_s(0, 1, 10**18)]
    assert all(0 < one < 1e60 for one in seconds)
    piece = EmulatedPair.min_prefill_piece.fget  # type: ignore[attr-defined]
    assert piece(SimpleNamespace(profile=found)) >= 1
