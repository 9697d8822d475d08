"""Habits of Spark, pandas and polars users: each works, or answers with what to write instead.

`habits.txt` beside this file has the answers, for people to read. Renew it with
`PYTHONPATH=src:. python -m tests.unit.support.test_habits`, and read what changed.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError, NoSuchVerb, QueryTypeError
from headrace.stream import Stream, Substreams, Table
from headrace.support import habits as answering
from tests.unit.support import habits

GOLDEN = Path(__file__).with_name("habits.txt")


def test_the_answers_are_those_that_were_read() -> None:
    assert habits.answers() == GOLDEN.read_text(encoding="utf-8")


def test_there_are_forty_of_them() -> None:
    typed = [line for line in habits.listed() if line and not line.startswith("#")]
    assert len(set(typed)) == len(typed) >= 40


@pytest.mark.parametrize("habit", [line for line in habits.listed() if line and not line.startswith("#")])
def test_an_answer_says_what_to_write(habit: str) -> None:
    found = habits.answer(habit)
    wanted = (
        "use ",
        "needs exactly one ",
        "write ",
        "such as ",
        " s.",
        "needs none",
        "by itself",
        "convert it: ",
        "choose another name",
        "did you mean ",
        "pass each name as a separate argument: ",
        "are `l` and `r`",
    )
    assert found.startswith("works") or any(words in found for words in wanted), found
    assert len(found) < 400


@pytest.mark.parametrize("name", sorted(answering.INSTEAD))
def test_no_habit_is_a_verb(name: str) -> None:
    """Else the table has an answer that is never given."""
    assert name not in vars(Stream)
    with pytest.raises(NoSuchVerb, match=f"`Stream` has no `{name}`; "):
        getattr(habits.s, name)
    assert not hasattr(habits.s, name)


def test_a_column_comes_before_a_habit() -> None:
    s = habits.s.rename({"x": "count"})
    with pytest.raises(NoSuchVerb, match="has no attribute for column 'count': write columns as SQL text"):
        s.count


@pytest.mark.parametrize("option", ["by", "window", "every", "last", "session", "offset", "zone"])
def test_no_result_of_aggregate_is_called_like_an_option(option: str) -> None:
    message = (
        rf"^{option}= is an option of aggregate, so no result can be called '{option}'; found {option}='max\(x\)'; "
    )
    with pytest.raises(QueryTypeError, match=message):
        habits.s.aggregate(**{option: "max(x)"}, n="count(*)")  # type: ignore[arg-type]
    renamed = habits.s.aggregate(last=3, new="max(x)").rename({"new": option})
    assert renamed.columns == ["ts", option]


def test_a_group_may_have_the_name_of_a_call() -> None:
    counts = habits.s.rename({"x": "count(1)"}).aggregate(by="count(1)", last=3, n="count(*)")
    assert counts.columns == ["ts", "count(1)", "n"]


def test_unknown_names() -> None:
    with pytest.raises(NoSuchVerb, match=r"`Stream` has no `frobnicate`; it has aggregate, .*with_columns"):
        habits.s.frobnicate()
    with pytest.raises(NoSuchVerb, match="`Table` has no `frobnicate`; it has columns, schema"):
        habits.table.frobnicate()
    with pytest.raises(NoSuchVerb, match="`Substreams` has no `fltr`; did you mean `filter`"):
        habits.s.split(2, by="k").fltr("x > 1")
    with pytest.raises(AttributeError, match="'Stream' object has no attribute '_jdf'"):
        habits.s._jdf
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'frobnicate'"):
        hr.frobnicate


def test_answers_are_errors_of_headrace_and_of_python() -> None:
    for habit, kind in ((lambda: habits.s.count(), AttributeError), (lambda: len(habits.s), TypeError)):
        with pytest.raises(kind) as error:
            habit()
        assert isinstance(error.value, HeadraceError)


def test_what_python_itself_asks_for_works() -> None:
    s = habits.s
    assert bool(s) and (s or None) is s
    assert s == s and hash(s) == hash(s) and s in [s]
    assert copy.copy(s).columns == s.columns
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        getattr(s, "_repr_png_")  # noqa: B009
    assert not hasattr(s, "__array__") and not hasattr(s, "__dataframe__")


@pytest.mark.parametrize("kind", [Stream, Substreams, Table])
def test_verbs_keep_their_signatures_and_docstrings(kind: Any) -> None:
    for name, verb in vars(kind).items():
        if callable(verb) and not name.startswith("_"):
            assert verb.__doc__ and verb.__name__ == name


def test_a_mistake_inside_a_verb_is_not_taken_for_a_wrong_call() -> None:
    def fails(t: Stream) -> Stream:
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        habits.s.split(2, by="k").each(fails)
    with pytest.raises(QueryTypeError, match=r"^unnest takes a column of lists"):
        habits.s.unnest("x")


if __name__ == "__main__":
    GOLDEN.write_text(habits.answers(), encoding="utf-8")
    print(f"{GOLDEN.name}: {len(habits.listed())} lines; read what changed")
