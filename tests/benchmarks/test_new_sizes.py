"""The benchmark of new sizes runs every operator of the table at several sizes."""

from __future__ import annotations

import pytest
from coverage_rows import ROWS

from benchmarks import new_sizes


@pytest.mark.parametrize("name", new_sizes.OPERATORS)
def test_every_operator_takes_any_size(name: str, plain: pytest.MonkeyPatch) -> None:
    plain.setattr(new_sizes, "ENTRIES", 48)
    maker = new_sizes.operator(new_sizes.OPERATORS[name])
    for size in (8, 12):
        maker(size)()


def test_replaced_rows_are_in_the_table() -> None:
    assert set(new_sizes.BY_SIZE) <= set(ROWS)
