"""What an experiment found, in one sentence: the first line of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pearl_pp.experiments.retained.comparison import DEDICATED, PLAIN, SPECULATIVE, Ratio
from pearl_pp.experiments.retained.figures import Line, Place

_REFERENCES = (PLAIN, SPECULATIVE, DEDICATED)


def answer(lines: Sequence[Line]) -> str:
    """Retained performance where `dedicated` was measured; else speed-up over `ar`; else tokens/s."""
    if not lines:
        return "No run that counts has been recorded yet."
    modes = " and ".join(sorted({line.place.mode for line in lines}))
    found = _retained(lines) or _speed_up(lines) or _speeds(lines)
    return f"{modes.capitalize()}: {found} {texts(lines)}{_shared_cores(lines)}"


def texts(lines: Sequence[Line]) -> str:
    """Whether the answers equal the oracle's, as a sentence."""
    num_equal = sum(line.text.num_equal for line in lines)
    wrong = [line for line in lines if line.text.num_different]
    if wrong:
        told = [f"{line.text.num_different} of {_num_judged(line)} of {_placed(line, lines)}" for line in wrong]
        return f"**NOT every text equals the oracle's: {'; '.join(told)} differ.**"
    if not num_equal:
        return "There is no oracle to compare the texts with."
    silent = sum(not line.text.num_equal for line in lines)
    return "Every text equals the oracle's" + (f", but {silent} rows have none to compare with." if silent else ".")


def _shared_cores(lines: Sequence[Line]) -> str:
    """A warning where real ranks had no core each: they then wait for one another's cores, as devices do not."""
    machines = {line.place.machine for line in lines if line.place.mode == "real"}
    few = [m for m in machines if m.device == "cpu" and m.cores < max(line.num_ranks for line in lines)]
    if not few:
        return ""
    return f" Ranks shared {_numbers(m.cores for m in few)} CPU cores: this is not what as many devices would do."


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.1f} %"


def percent_with_interval(ratio: Ratio | None) -> str:
    """`98.1 % [97.0, 99.2]`."""
    if ratio is None:
        return "n/a"
    if ratio.interval is None:
        return percent(ratio.value)
    low, high = ratio.interval
    return f"{percent(ratio.value)} [{100 * low:.1f}, {100 * high:.1f}]"


def _retained(lines: Sequence[Line]) -> str:
    ratios = _by_row(lines, lambda line: line.retained)
    if not ratios:
        return ""
    references = [line for line in lines if line.family == DEDICATED]
    told = _told(ratios, percent_with_interval, percent)
    first, *others = [f"`{name}`{_on_ranks(name, lines)} keeps {value}" for name, value in told.items()]
    rest = [text.replace(" keeps ", " ") for text in others]
    ranks = _numbers(line.num_ranks for line in references)
    return (
        f"{first} of the tokens/s of PEARL with a rank of its own for the draft (`{DEDICATED}`, {ranks} ranks)"
        f"{''.join(f'; {text}' for text in rest)}{_over_cases(lines)}."
    )


def _speed_up(lines: Sequence[Line]) -> str:
    ratios = _by_row(lines, lambda line: line.over_plain, but=(PLAIN,))
    if not ratios:
        return ""
    told = _told(ratios, lambda ratio: f"{ratio.value:.2f} times", lambda value: f"{value:.2f}")
    rows = ", ".join(f"`{name}` {value}" for name, value in told.items())
    return f"tokens/s over those of plain decoding (`{PLAIN}`): {rows}{_over_cases(lines)}."


def _speeds(lines: Sequence[Line]) -> str:
    known = [line for line in lines if line.tokens_per_s is not None]
    rows = ", ".join(f"{_placed(line, lines)} {line.tokens_per_s:.2f}" for line in known)
    return f"tokens/s: {rows}." if rows else "nothing was decoded."


def _by_row(
    lines: Sequence[Line], ratio: Callable[[Line], Ratio | None], but: Sequence[str] = _REFERENCES
) -> dict[str, list[Ratio]]:
    """Ratios of the engine's rows over all places; of a row's sweep the best one of each place."""
    best: dict[tuple[Place, str], tuple[Ratio, Line]] = {}
    for line in lines:
        value, key = ratio(line), (line.place, line.family)
        if value is None or line.family in but or not line.how:
            continue
        if key not in best or value.value > best[key][0].value:
            best[key] = value, line
    found: dict[str, list[Ratio]] = {}
    one_place = len({line.place for line in lines}) == 1
    for (_, family), (value, line) in best.items():
        found.setdefault(line.name if one_place else family, []).append(value)
    return found


def _told(
    ratios: Mapping[str, Sequence[Ratio]], one: Callable[[Ratio], str], bound: Callable[[float], str]
) -> dict[str, str]:
    """One value with its interval, or from the least to the most."""

    def words(values: Sequence[Ratio]) -> str:
        if len(values) == 1:
            return one(values[0])
        numbers = sorted(ratio.value for ratio in values)
        return " to ".join(dict.fromkeys((bound(numbers[0]), bound(numbers[-1]))))

    return {name: words(values) for name, values in ratios.items()}


def _placed(line: Line, lines: Sequence[Line]) -> str:
    name = f"`{line.name}`"
    return name if len({other.place for other in lines}) == 1 else f"{name} ({line.place.case})"


def _on_ranks(name: str, lines: Sequence[Line]) -> str:
    ranks = _numbers(line.num_ranks for line in lines if name in (line.name, line.family))
    return f" on {ranks} ranks"


def _numbers(values: Iterable[int]) -> str:
    different = sorted(set(values))
    return " to ".join(str(value) for value in dict.fromkeys((different[0], different[-1])))


def _over_cases(lines: Sequence[Line]) -> str:
    num_places = len({line.place for line in lines})
    return f", over {num_places} cases" if num_places > 1 else ""


def _num_judged(line: Line) -> int:
    return line.text.num_equal + line.text.num_different
