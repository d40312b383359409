"""Merging: the order of PostgreSQL, and no more rows than it takes."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.router.errors import OrderUnsupported
from shardctl.router.merging import Merging, sort_key
from shardctl.router.statements import Gathering, Order

INT8, TEXT, NUMERIC, INTERVAL, TIMESTAMPTZ = 20, 25, 1700, 1186, 1184


def by(*orders: Order, types: tuple[int, ...]) -> Any:
    fields = tuple(order.field for order in orders)
    return sort_key(Gathering("t", fields, None, orders, None), types)


def merge(streams: list[list[Any]], key: Any, limit: int | None, chunk: int) -> list[Any]:
    """Merge streams that come so many rows at a time."""
    merging = Merging(len(streams), key, limit)
    left = [list(stream) for stream in streams]
    found: list[Any] = []
    while wanting := merging.wanting():
        for number in wanting:
            rows, left[number] = left[number][:chunk], left[number][chunk:]
            merging.feed(number, rows, over=not left[number])
        found += merging.ready()
    return found


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers())), max_size=5),
       st.none() | st.integers(0, 20), st.integers(1, 4), st.booleans())  # fmt: skip
def test_merged_streams_are_in_order_whatever_the_chunks(
    streams: list[list[tuple[int, int]]], limit: int | None, chunk: int, descending: bool
) -> None:
    ordered = [sorted(stream, key=lambda r: r[0], reverse=descending) for stream in streams]
    key = by(Order("a", descending), types=(INT8,))
    found = merge(ordered, key, limit, chunk)
    whole = sorted((row for one in streams for row in one), key=lambda r: r[0], reverse=descending)
    assert [row[0] for row in found] == [row[0] for row in whole][:limit]


@given(st.lists(st.lists(st.integers().map(lambda n: (n,))), max_size=5),
       st.none() | st.integers(0, 20), st.integers(1, 4))  # fmt: skip
def test_without_an_order_every_row_comes_once(
    streams: list[list[tuple[int]]], limit: int | None, chunk: int
) -> None:
    found = merge(streams, None, limit, chunk)
    whole = [row for one in streams for row in one]
    assert len(found) == min(len(whole), math.inf if limit is None else limit)
    if limit is None:
        assert sorted(found) == sorted(whole)


def test_only_a_stream_that_has_run_dry_is_asked_for_more() -> None:
    merging = Merging(2, by(Order("a"), types=(INT8,)), None)
    merging.feed(0, [(1,), (2,)], over=False)
    assert list(merging.ready()) == []
    merging.feed(1, [(5,), (6,)], over=False)
    assert list(merging.ready()) == [(1,), (2,)]
    assert merging.wanting() == [0]
    merging.feed(0, [], over=True)
    assert list(merging.ready()) == [(5,), (6,)]


def test_nothing_more_is_wanted_once_the_limit_is_reached() -> None:
    merging = Merging(2, by(Order("a"), types=(INT8,)), 1)
    merging.feed(0, [(1,)], over=False)
    merging.feed(1, [(2,)], over=False)
    assert list(merging.ready()) == [(1,)]
    assert merging.wanting() == []


@pytest.mark.parametrize("descending", [False, True])
def test_nulls_and_nan_are_where_postgresql_has_them(descending: bool) -> None:
    values = [Decimal(-1), Decimal(7), Decimal("Infinity"), Decimal("NaN"), None]
    rows = [(value,) for value in (reversed(values) if descending else values)]
    key = by(Order("a", descending), types=(NUMERIC,))
    found = merge([rows[::2], rows[1::2]], key, None, 1)
    assert list(map(str, found)) == list(map(str, rows))


def test_each_field_has_its_own_direction() -> None:
    # Gathering puts a column by bytes behind the fields.
    orders = (Order("a"), Order("b", descending=True, by_bytes=True))
    key = sort_key(Gathering("t", ("a",), None, orders, None), (INT8, TEXT))
    rows = [(1, "é"), (1, "z"), (1, "a"), (2, "z")]
    assert merge([rows[::2], rows[1::2]], key, None, 2) == rows


def test_what_python_does_not_order_as_the_server_is_refused() -> None:
    with pytest.raises(OrderUnsupported, match="by caption, of type text"):
        by(Order("caption"), types=(TEXT,))
    with pytest.raises(OrderUnsupported, match="of type interval"):
        by(Order("took", by_bytes=True), types=(INTERVAL, INTERVAL))
    with pytest.raises(OrderUnsupported, match="of type OID 99999"):
        by(Order("mood"), types=(99999,))


def test_moments_of_the_hour_that_comes_twice_are_in_their_order() -> None:
    zone = ZoneInfo("Europe/Berlin")
    earlier = datetime(2025, 10, 26, 2, 50, tzinfo=zone)
    later = datetime(2025, 10, 26, 2, 10, tzinfo=zone, fold=1)
    assert earlier > later, "as Python has it"
    key = by(Order("moment", descending=False), types=(TIMESTAMPTZ,))
    assert sorted([(later,), (earlier,)], key=key) == [(earlier,), (later,)]
