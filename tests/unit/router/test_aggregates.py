"""Parts of aggregates from many shards, put together as one database computes them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from shardctl.router.aggregates import Avg, Count, Max, Min, Sum

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARDS = st.lists(st.lists(st.none() | st.integers(-(10**9), 10**9), max_size=5), max_size=6)


def parts(shards: Sequence[Sequence[int | None]]) -> dict[str, list[tuple[int | None, ...]]]:
    """Give what every shard would compute."""
    found: dict[str, list[tuple[int | None, ...]]] = {"count": [], "sum": [], "min": [], "max": []}
    for shard in shards:
        values = [value for value in shard if value is not None]
        found["count"].append((len(values),))
        found["sum"].append((sum(values) if values else None,))
        found["min"].append((min(values, default=None),))
        found["max"].append((max(values, default=None),))
    return found


@given(SHARDS)
def test_shards_together_are_one_table(shards: list[list[int | None]]) -> None:
    values = [value for shard in shards for value in shard if value is not None]
    of = parts(shards)
    assert Count("n").combine(of["count"]) == len(values)
    assert Sum("n").combine(of["sum"]) == (sum(values) if values else None)
    assert Min("n").combine(of["min"]) == min(values, default=None)
    assert Max("n").combine(of["max"]) == max(values, default=None)
    both = [(*total, *count) for total, count in zip(of["sum"], of["count"], strict=True)]
    mean = Avg("n").combine(both)
    assert mean == (Decimal(sum(values)) / len(values) if values else None)


def test_what_is_not_a_number_is_above_all_numbers() -> None:
    nan = Decimal("NaN")
    assert Min("n").combine([(nan,), (Decimal(1),), (None,)]) == 1
    assert Max("n").combine([(nan,), (Decimal(1),), (None,)]).is_nan()


def test_what_shards_compute_is_quoted() -> None:
    texts = [term.text for term in Avg('a "b%').terms()]  # type: ignore[union-attr]
    assert texts == ['pg_catalog.sum("a ""b%%")', 'pg_catalog.count("a ""b%%")']
