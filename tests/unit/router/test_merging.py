"""Merging: the order of PostgreSQL."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from shardctl.router.errors import OrderUnsupported
from shardctl.router.merging import Gathering, merged
from shardctl.router.statements import Answer, Order

TEXT, NUMERIC, INTERVAL = 25, 1700, 1186


def merge(streams: list[list[Any]], order: Order, kind: int) -> list[Any]:
    asked = Gathering("t", (order.field,), None, (order,), None)
    doubled = [[row * 2 for row in rows] for rows in streams]  # the field, and the order's
    return merged(asked, [Answer(rows, len(rows), (kind, kind)) for rows in doubled])


@pytest.mark.parametrize("descending", [False, True])
def test_nulls_and_nan_are_where_postgresql_has_them(descending: bool) -> None:
    values = [Decimal(-1), Decimal(7), Decimal("Infinity"), Decimal("NaN"), None]
    rows = [(value,) for value in (reversed(values) if descending else values)]
    found = merge([rows[::2], rows[1::2]], Order("a", descending), NUMERIC)
    assert list(map(str, found)) == list(map(str, rows))


@pytest.mark.parametrize("kind", [TEXT, INTERVAL, 99999])
def test_what_python_does_not_order_as_the_server_is_refused(kind: int) -> None:
    with pytest.raises(OrderUnsupported):
        merge([[]], Order("a"), kind)
