"""fetch_many and scatter on real nodes, on both faces."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from shardctl.router import (
    DeadlinePassed,
    IdsUnlike,
    Order,
    OrderUnsupported,
    PoolSettings,
    WritesUnseen,
)
from shardctl.router.scatter import CHUNK
from tests.fixtures.fleets.routed import fill
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Open

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def made(number: int, shard: int) -> datetime:
    return DAY + timedelta(seconds=number * 8 + shard)


def test_rows_come_in_the_order_asked_for_and_missing_ones_are_told(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, 3)
    db = router(fleet_routed.topology())
    wanted = [(6, 2), (1, 3), (6, 99), (0, 1), (6, 2), (14, 1)]
    assert db.fetch_many(["user_id", "caption"], "photos", wanted) == [
        (6, "photo 2"), (1, "photo 3"), None, (0, "photo 1"), (6, "photo 2"), (6, "photo 1"),
    ]  # fmt: skip
    assert db.fetch_many("caption", "photos", []) == []


def test_what_an_open_transaction_has_changed_is_not_missed_in_silence(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, 1)
    db = router(fleet_routed.topology())
    lock = "SELECT id FROM photos WHERE id = 1 FOR UPDATE"
    insert = "INSERT INTO photos (id, user_id) VALUES (7, 2)"
    assert len(db.read_within(2, lock, "scatter", "id", "photos").rows) == 8
    assert db.read_within(2, lock, "fetch_many", "id", "photos", [(2, 1)]) == [(1,)]
    with pytest.raises(WritesUnseen, match="open transaction of shard 2 has changed tables"):
        db.read_within(2, insert, "scatter", "id", "photos")
    with pytest.raises(WritesUnseen):
        db.read_within(2, insert, "fetch_many", "id", "photos", [(4, 1), (2, 7)])
    assert db.read_within(2, insert, "fetch_many", "id", "photos", [(4, 1)]) == [(1,)]
    assert db.fetch_many("id", "photos", [(2, 7)]) == [(7,)]
    assert len(db.scatter("id", "photos").rows) == 9


def test_ids_that_cannot_be_found_for_their_type_are_refused(
    fleet_routed: Fleet, router: Open
) -> None:
    uuids = [UUID(int=1), UUID(int=2)]
    for shard in (1, 2):
        fleet_routed.execute(
            "a",
            f"CREATE TABLE shard{shard}.keyed (u uuid, t text, c char(5), n numeric);"
            f"INSERT INTO shard{shard}.keyed VALUES ('{uuids[0]}', 'Ann', 'ab', 7);"
            f"GRANT ALL ON shard{shard}.keyed TO {fleet_routed.role}",
        )
    fill(fleet_routed, 3)
    db = router(fleet_routed.topology())
    for number in ("2", "99"):
        with pytest.raises(IdsUnlike, match=r"id is of type bigint: no row .* Python's type str$"):
            db.fetch_many("user_id", "photos", [(1, number)])
    with pytest.raises(IdsUnlike, match="of type bigint"):
        db.fetch_many("user_id", "photos", [(1, 2), (6, "2")])
    for uuid in uuids:
        with pytest.raises(IdsUnlike, match=r"u is of type uuid: .* type str$") as caught:
            db.fetch_many("n", "keyed", [(1, str(uuid))], id_field="u")
        assert "uuid.UUID for uuid" in (caught.value.hint or "")
    assert db.fetch_many("n", "keyed", [(1, u) for u in uuids], id_field="u") == [(7,), None]
    assert db.fetch_many("n", "keyed", [(1, "Ann"), (2, "ann")], id_field="t") == [(7,), None]
    assert db.fetch_many("t", "keyed", [(1, 7), (2, 8), (2, None)], id_field="n") == [
        ("Ann",), None, None,
    ]  # fmt: skip
    with pytest.raises(IdsUnlike, match="c is of type character"):
        db.fetch_many("t", "keyed", [(1, "ab")], id_field="c")


def test_each_node_gets_one_statement_with_a_sub_select_a_shard(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, 3)
    for node in fleet_routed.servers:
        fleet_routed.execute(node, f"ALTER ROLE {fleet_routed.role} SET log_statement = 'all'")
    db = router(fleet_routed.topology())
    before = {node: len(server.log()) for node, server in fleet_routed.servers.items()}
    wanted = [(key, number) for key in range(8) for number in (1, 2, 3)]
    assert None not in db.fetch_many("caption", "photos", wanted)
    assert len(db.scatter("id", "photos", order_by="id", limit=7).rows) == 7
    for node, server in fleet_routed.servers.items():
        told = server.log()[before[node] :]
        assert told.count("execute <unnamed>: ") + told.count("LOG:  statement: (SELECT") == 2
        assert told.count("= ANY (") == 4
        assert told.count("LIMIT 7)") == 4
        assert told.count("ORDER BY 1 LIMIT 7\n") == 1


def test_the_newest_rows_of_all_shards_are_merged(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 40)
    db = router(fleet_routed.topology())
    found = db.scatter(["user_id", "id"], "photos", order_by="-made", limit=10).rows
    newest = sorted(((made(n, s), s, n) for n in range(1, 41) for s in range(8)), reverse=True)
    assert found == [(shard, number) for _, shard, number in newest[:10]]
    some = db.scatter("id", "photos", "user_id = %s AND id > %s", [6, 38], order_by="id").rows
    assert some == [(39,), (40,)]
    named = db.scatter("id", "photos", "id = %(id)s", {"id": 7}, order_by=["id"], limit=3).rows
    assert named == [(7,), (7,), (7,)]


@pytest.mark.parametrize("order", ["score", "-score"])
def test_nulls_and_nan_are_where_one_server_would_have_them(
    fleet_routed: Fleet, router: Open, order: str
) -> None:
    fill(fleet_routed, 20)
    db = router(fleet_routed.topology())
    found = db.scatter(["score"], "photos", order_by=order).rows
    values = ", ".join(f"({'NULL' if v is None else repr(str(v))}::numeric)" for (v,) in found)
    direction = "DESC" if order[0] == "-" else ""
    one = fleet_routed.query(
        "a", f"SELECT v FROM (VALUES {values}) AS r (v) ORDER BY v {direction}"
    )
    assert list(map(str, found)) == list(map(str, one))


def test_text_is_merged_by_bytes_and_not_otherwise(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    for user, caption in enumerate(["b", "É", "a", "Z", "z", "é"]):
        db.insert("photos", user, {"user_id": user, "caption": caption})
    with pytest.raises(OrderUnsupported, match="by caption, of type text"):
        db.scatter("caption", "photos", order_by="caption")
    found = db.scatter("user_id", "photos", order_by=Order("caption", by_bytes=True)).rows
    assert found == [(3,), (2,), (0,), (4,), (1,), (5,)]


def test_all_rows_stream_in_bounded_pieces(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, CHUNK)
    db = router(fleet_routed.topology())
    found = db.scatter(["made"], "photos", order_by="made").rows
    assert len(found) == 8 * CHUNK
    assert found == sorted(found)
    assert len(db.scatter("id", "photos").rows) == 8 * CHUNK
    assert len(db.scatter("id", "photos", limit=CHUNK + 5).rows) == CHUNK + 5


def test_a_scatter_that_is_left_early_gives_its_connections_back(
    fleet_routed: Fleet, router: Open
) -> None:
    fill(fleet_routed, CHUNK)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=1, timeout=2))
    for _ in range(3):
        assert len(db.scatter("id", "photos", order_by="id", most=5).rows) == 5
    assert db.insert("photos", 1, {"user_id": 1}) > 0
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    wait_for(lambda: fleet_routed.query("a", idle) == [(0,)])


def lock(fleet: Fleet, node: str, shard: int) -> psycopg.Connection[Any]:
    """Let nobody read a shard until the session ends."""
    session = fleet.connect(node, autocommit=False)
    session.execute(f"LOCK TABLE shard{shard}.photos".encode())
    return session


@pytest.mark.parametrize("limit", [5, None])
def test_what_does_not_answer_in_time_fails_the_whole(
    fleet_routed: Fleet, router: Open, limit: int | None
) -> None:
    fill(fleet_routed, 3)
    db = router(fleet_routed.topology())
    db.scatter("id", "photos")  # with a connection to each node nothing else takes its time
    with lock(fleet_routed, "b", 6):
        began = time.monotonic()
        with pytest.raises(DeadlinePassed, match="shards 4-7 did not answer") as caught:
            db.scatter("id", "photos", order_by="id", limit=limit, deadline=0.8)
        assert caught.value.shards == {4, 5, 6, 7}
        assert time.monotonic() - began < 5
        # Nobody works on for a caller who has gone.
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_for(lambda: fleet_routed.query("b", waiting) == [(0,)])
    assert len(db.scatter("id", "photos", deadline=10).rows) == 24


@pytest.mark.parametrize("limit", [50, None])
def test_partial_results_are_given_when_asked_for(
    fleet_routed: Fleet, router: Open, limit: int | None
) -> None:
    fill(fleet_routed, 3)
    db = router(fleet_routed.topology())
    db.scatter("id", "photos")  # as above
    with lock(fleet_routed, "b", 6):
        found = db.scatter(
            ["user_id"], "photos", order_by="id", limit=limit, deadline=0.8, partial=True
        )
        assert {row[0] for row in found.rows} == {0, 1, 2, 3}
        assert found.missing == dict.fromkeys((4, 5, 6, 7), "no answer in time")
    whole = db.scatter("user_id", "photos", limit=limit, deadline=10, partial=True)
    assert (len(whole.rows), whole.missing) == (24, {})


def test_a_mistake_is_no_missing_node(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.scatter("id", "photos", "nothing = 1", partial=True)
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.scatter("id", "forgotten", partial=True, deadline=5)
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.fetch_many("id", "forgotten", [(1, 1), (6, 1)])
