"""What files may hold that nobody meant: text, numbers, nesting, bytes."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from hypothesis import strategies as st

LONG = "x" * 100_000
ODD_TEXTS = (
    "", " ", "\x00", "\x07\x1b[31m", "\x1b]0;title\x07", "\u202e\u2066", "\ufeff", "\ufffe", "\u2028\u2029",
    "e\u0301" * 50,
    "\U0001f469\u200d\U0001f52c", "true", "null", "~", "1e400", "-1", "nan", "0x10", "1_000", "../../etc",
    "/dev/null/x",
    "%s%n{}{0}$(id)`id`", "a: b", "- a", "{", "[", "&a", "*a", "!!python/object/apply:os.system [id]", LONG,
)  # fmt: skip
ODD_NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**30,
    10**400,
    0.0,
    -0.0,
    1e-320,
    1e308,
    float("inf"),
    float("nan"),
)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


ODD_VALUES = st.one_of(
    st.sampled_from(ODD_TEXTS),
    st.text(max_size=40),
    st.sampled_from(ODD_NUMBERS),
    st.integers(),
    st.floats(),
    st.none(),
    st.booleans(),
    st.sampled_from([[], {}, [[]], [{}], {"": 1}, {"a": None}, [None, None], ["a"] * 1000]),
    st.integers(1, 60).map(nested),
    st.dates(),
    st.binary(max_size=20),
)


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to every value in nested lists and mappings."""
    parts = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(place for key, value in parts for place in places(value, (*path, key)))]


@st.composite
def changed(draw: st.DrawFn, content: Any) -> Any:
    """`content` with one or two values replaced, dropped or added."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from([p for p in places(content) if p] or [("new",)]))
        holder = content
        for key in place[:-1]:
            holder = holder[key]
        what = draw(st.sampled_from(["replace", "drop", "add"]))
        if what == "drop" and holder and (isinstance(holder, list) or place[-1] in holder):
            del holder[place[-1]]
        elif what == "add" and isinstance(holder, dict):
            holder[draw(st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=8)))] = copy.deepcopy(draw(ODD_VALUES))
        elif isinstance(holder, dict):
            holder[place[-1]] = copy.deepcopy(draw(ODD_VALUES))
        else:
            holder.insert(0, copy.deepcopy(draw(ODD_VALUES)))
    return content


def _at(content: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        content = content[key]
    return content


@st.composite
def stretched(draw: st.DrawFn, content: Any) -> Any:
    """`content` with some of its numbers far larger or smaller: most of it can still be used."""
    content = copy.deepcopy(content)
    numbers = [place for place in places(content) if type(_at(content, place)) in (int, float)]
    for place in draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=4)):
        holder, value = _at(content, place[:-1]), _at(content, place)
        changed_value = value * 10.0 ** draw(st.integers(-8, 8))
        holder[place[-1]] = int(changed_value) if isinstance(value, int) else changed_value
    return content


def as_yaml(content: Any) -> bytes:
    return yaml.dump(content, allow_unicode=True).encode("utf-8", "surrogatepass")


@st.composite
def torn(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` cut, with bytes put in."""
    at = draw(st.integers(0, len(content)))
    put = draw(
        st.one_of(st.binary(max_size=30), st.sampled_from([b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"\r", b"\t", b"'"]))
    )
    return content[:at] + put + content[at + draw(st.integers(0, 5)) :]


# Whole files that are nothing at all.
ODD_FILES = (
    b"", b"\n", b"\xef\xbb\xbf", b"\xff\xfe\x00", b"\x00" * 100, b"\xc3\x28", b"\xed\xa0\x80",
    bytes(range(256)), LONG.encode(),
    (LONG + ": 1").encode(), b"a: " + b"9" * 5000, b"a: 0x" + b"f" * 5000, b"a: " + b"9:" * 3000 + b"9",
    b"a: 1e" + b"9" * 5000,
    b"[" * 5000, b"{a: " * 3000, b"a: [" * 2000, b"- " * 5000, b"? " * 3000, b"a: &a [1]\nb: *a", b"a: &a\n  - *a",
    b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("k"))
    ),
    b"!!python/object/apply:os.system ['id']", b"a: !!binary x", b"a: !!float x", b"a: !!timestamp x",
    b"a: 2026-02-31",
    b"a: !unknown 1", b"%YAML 9.9\n---\na: 1", b"--- 1\n--- 2\n", b"<<: 1", b"<<: {a: 1}", b"=: 1", b"a\tb: c",
    b"a: \"\\x1b[2J\"",
)  # fmt: skip
