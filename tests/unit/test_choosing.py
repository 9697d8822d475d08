"""Which cases are taken by whom."""

from __future__ import annotations

import pytest

from tests.choosing import few


@pytest.mark.parametrize("most", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 28])
def test_of_each_test_a_few_cases_are_taken_the_first_among_them(count: int, most: int):
    cases = [*(f"a[{n}]" for n in range(count)), "b"]
    taken = few(cases, most, lambda case: case.partition("[")[0])
    assert len(taken) == min(count, most) + 1
    assert {"a[0]", "b"} <= taken
    assert most == 1 or f"a[{count - 1}]" in taken
