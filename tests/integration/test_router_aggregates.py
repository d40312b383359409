"""Aggregates over all shards are what one database would give."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from psycopg import sql
from psycopg.rows import dict_row

from shardctl.errors import Misused
from shardctl.router import Avg, Count, Max, Min, Order, OrderUnsupported, Sum
from tests.fixtures.fleets.routed import fill

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Open


def test_aggregates_of_all_rows(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 10)
    db = router(fleet_routed.topology())
    fields = [Count(), Count("score"), Sum("id"), Min("id"), Max("id"), Avg("id"), Avg("user_id")]
    assert db.scatter(fields, "photos").rows == [
        (80, 72, 440, 1, 10, Decimal("5.5"), Decimal("3.5"))
    ]
    assert db.scatter(Count(), "photos", "id = %s", [3]).rows == [(8,)]
    none = [Count(), Sum("id"), Min("id"), Max("made"), Avg("id")]
    assert db.scatter(none, "photos", "false").rows == [(0, None, None, None, None)]
    newest = db.scatter(Max("made"), "photos").rows[0][0]
    assert newest == max(made for (made,) in db.scatter("made", "photos").rows)
    (score,) = db.scatter(Max("score"), "photos").rows
    assert score[0].is_nan()  # as PostgreSQL has it
    (least,) = db.scatter(Min("score"), "photos").rows
    assert least == (2,)


def test_aggregates_of_groups_in_order(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 10)
    db = router(fleet_routed.topology())
    fields = [sql.SQL("id %% 3"), Count(), Sum("user_id")]
    found = db.scatter(fields, "photos").rows
    assert sorted(found) == [(0, 24, 84), (1, 32, 112), (2, 24, 84)]
    by_count = db.scatter(fields, "photos", order_by=Order(fields[1], descending=True), limit=1)
    assert by_count.rows == [(1, 32, 112)]
    by_id = db.scatter(["id", Count()], "photos", order_by="-id", limit=2, row_factory=dict_row)
    assert by_id.rows == [{"id": 10, "count": 8}, {"id": 9, "count": 8}]
    named = db.scatter([Count(name="photos")], "photos", row_factory=dict_row)
    assert named.rows == [{"photos": 80}]
    # Two NaNs are one group, and NULLs are one, too.
    scores = db.scatter(["score", Count()], "photos").rows
    assert len(scores) == len({str(score) for score, _ in scores})


def test_what_has_no_order_is_refused(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 2)
    db = router(fleet_routed.topology())
    with pytest.raises(OrderUnsupported):
        db.scatter(Max("caption"), "photos")
    with pytest.raises(OrderUnsupported):
        db.scatter(["caption", Count()], "photos", order_by="caption")
    with pytest.raises(Misused, match="cannot be ordered by id"):
        db.scatter(["caption", Count()], "photos", order_by="id")
    with pytest.raises(Misused, match="arrays or JSON"):
        db.scatter([sql.SQL("ARRAY[id]"), Count()], "photos")
    rows = db.scatter([Count("caption")], "photos", partial=True)
    assert (rows.rows, rows.missing) == ([(16,)], {})
