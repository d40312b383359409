"""Merging: the order of PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from shardctl.router.errors import OrderUnsupported
from shardctl.router.merging import Gathering, combined, merged
from shardctl.router.statements import Aggregate, Answer, Order

INT8, TEXT, NUMERIC, INTERVAL, TIMESTAMPTZ = 20, 25, 1700, 1186, 1184


def merge(
    streams: list[list[Any]], *orders: Order, types: tuple[int, ...], limit: int | None = None
) -> list[Any]:
    fields = tuple(order.field for order in orders) or ("a",)
    asked = Gathering("t", fields, None, orders, limit)
    return merged(asked, [Answer(rows, len(rows), types) for rows in streams])


@pytest.mark.parametrize("descending", [False, True])
def test_nulls_and_nan_are_where_postgresql_has_them(descending: bool) -> None:
    values = [Decimal(-1), Decimal(7), Decimal("Infinity"), Decimal("NaN"), None]
    rows = [(value,) for value in (reversed(values) if descending else values)]
    found = merge([rows[::2], rows[1::2]], Order("a", descending), types=(NUMERIC,))
    assert list(map(str, found)) == list(map(str, rows))


def test_each_field_has_its_own_direction_and_may_be_none_of_those_asked_for() -> None:
    orders = (Order("a"), Order("b", descending=True))
    rows = [(1, 9), (1, 5), (1, 2), (2, 7)]
    assert merge([rows[::2], rows[1::2]], *orders, types=(INT8, INT8)) == rows
    asked = Gathering("t", ("a",), None, orders, None)
    answers = [Answer(part, 2, (INT8, INT8)) for part in (rows[::2], rows[1::2])]
    assert merged(asked, answers) == [(1,), (1,), (1,), (2,)]


def test_what_python_does_not_order_as_the_server_is_refused() -> None:
    with pytest.raises(OrderUnsupported):
        merge([[]], Order("caption"), types=(TEXT,))
    with pytest.raises(OrderUnsupported):
        merge([[]], Order("took"), types=(INTERVAL,))
    with pytest.raises(OrderUnsupported):
        merge([[]], Order("mood"), types=(99999,))


@pytest.mark.parametrize(
    ("values", "total"),
    [
        (["123456789012345678901234567890.12", "0.01"], "123456789012345678901234567890.13"),
        (["Infinity", "-Infinity"], "NaN"),
    ],
)
def test_sums_are_as_exact_as_the_servers(values: list[str], total: str) -> None:
    answers = [Answer([(Decimal(value),)], 1, (NUMERIC,)) for value in values]
    assert [str(one) for one in combined([Aggregate.sum("a")], answers)] == [total]


def test_moments_of_the_hour_that_comes_twice_are_in_their_order() -> None:
    zone = ZoneInfo("Europe/Berlin")
    earlier = datetime(2025, 10, 26, 2, 50, tzinfo=zone)
    later = datetime(2025, 10, 26, 2, 10, tzinfo=zone, fold=1)
    assert earlier > later, "as Python has it"
    found = merge([[(later,)], [(earlier,)]], Order("moment"), types=(TIMESTAMPTZ,))
    assert found == [(earlier,), (later,)]
