"""Many rows in and out: `insert_many`, `select_many`, what is returned, and rows of a type."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import class_row, dict_row, namedtuple_row, scalar_row

from shardctl.errors import Misused, ShardctlError
from shardctl.router import (
    CommitUnknown,
    IdsUnlike,
    InsertedInPart,
    NothingReturned,
    OnConflict,
    PoolSettings,
    loading,
)
from shardctl.topology.model import ShardId
from tests.fixtures import breaking, storms
from tests.fixtures.fleets.routed import backends, fill, moved_by_hand
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.routed import Face, Open


@dataclass
class Photo:
    """A row of photos."""

    id: int
    user_id: int


def rows_of(count: int, keys: range = range(8)) -> list[tuple[int, dict[str, Any]]]:
    """Give rows for keys in turn, with ids that say where each stands."""
    return [
        (key, {"id": number, "user_id": key, "caption": f"photo {number}"})
        for number, key in zip(range(count), list(keys) * (count // len(keys) + 1), strict=False)
    ]


def all_ids(db: Face) -> list[int]:
    return sorted(number for (number,) in db.scatter("id", "photos").rows)


def test_rows_go_to_their_shards(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    assert db.insert_many("photos", rows_of(1000)) == 1000
    assert all_ids(db) == list(range(1000))
    assert db.select(["id", "user_id", "caption"], "photos", 3, order_by="id", limit=2) == [
        (3, 3, "photo 3"), (11, 3, "photo 11"),
    ]  # fmt: skip
    assert db.insert_many("photos", []) == 0
    assert db.insert_many("photos", iter([]), returning="id") == []
    assert storms.missing(db.db) == {}


def test_rows_may_have_different_fields_and_none(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    rows: list[Any] = [
        (1, {"id": 1, "user_id": 1}),
        (1, {"user_id": 1, "id": 2, "caption": None}),
        (1, {"id": 3, "user_id": 1, "score": Decimal("1.5"), "caption": "tab\tand \\ and ü"}),
    ]
    assert db.insert_many("photos", rows) == 3
    assert db.select(["id", "caption", "score"], "photos", 1, order_by="id") == [
        (1, None, None), (2, None, None), (3, "tab\tand \\ and ü", Decimal("1.5")),
    ]  # fmt: skip
    fleet_routed.execute("a", "ALTER TABLE shard1.photos ALTER user_id SET DEFAULT 9")
    made = db.insert_many("photos", [(1, {})] * 3, returning=["user_id"])
    assert made == [(9,)] * 3


def test_what_is_returned_comes_in_the_order_of_the_rows(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    rows = [(key, {"user_id": key, "caption": str(n)}) for n, (key, _) in enumerate(rows_of(3000))]
    made = db.insert_many("photos", rows, returning="id")
    assert [db.shard_of_id(one) for one in made] == [key for key, _ in rows]
    pairs = [(key, one) for (key, _), one in zip(rows, made, strict=True)]
    assert db.fetch_many("caption", "photos", pairs) == [(str(n),) for n in range(3000)]
    more = db.insert_many(
        "photos", rows[:9], returning=["caption", "user_id"], row_factory=dict_row
    )
    assert more == [{"caption": str(n), "user_id": key} for n, (key, _) in enumerate(rows[:9])]


def test_conflicts_are_left_out_or_updated(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    db.insert_many("photos", rows_of(8))
    assert db.insert_many("photos", rows_of(16), on_conflict=OnConflict()) == 8
    again = [(key, values | {"caption": "new"}) for key, values in rows_of(8)]
    assert db.insert_many("photos", again, on_conflict=OnConflict("id")) == 0
    update = OnConflict(["id"], update="caption")
    back = db.insert_many("photos", again, returning=["id", "caption"], on_conflict=update)
    assert back == [(n, "new") for n in range(8)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.insert_many("photos", rows_of(8))
    with pytest.raises(psycopg.errors.CardinalityViolation):
        db.insert_many("photos", [again[0], again[0]], on_conflict=update)


def test_odd_names_are_names_in_conflicts(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    table, field = 'odd "name%s', 'a "b%'
    for node, shards in (("a", range(4)), ("b", range(4, 8))):
        for shard in shards:
            fleet_routed.execute(
                node, f'CREATE UNIQUE INDEX ON shard{shard}."odd ""name%s" ("a ""b%")'
            )
    rows = [(key, {field: key}) for key in range(8)]
    assert db.insert_many(table, rows) == 8
    assert db.insert_many(table, rows, on_conflict=OnConflict(field, update=[field])) == 8
    assert db.insert_many(table, rows, on_conflict=OnConflict(field)) == 0
    found = db.select_many(field, table, [5, 6], field, order_by=field, limit=3)
    assert found == [[(5,)], [(6,)]]
    assert db.update(table, 5, {field: 9}, sql.SQL("true"), returning=field) == [9]
    assert db.delete(table, 5, sql.SQL("true"), returning=[field]) == [(9,)]
    evil = "id) DO NOTHING; DROP TABLE shard1.photos; --"
    for conflict in (OnConflict(evil), OnConflict("id", update=[evil])):
        with pytest.raises(psycopg.errors.UndefinedColumn):
            db.insert_many("photos", rows_of(8), on_conflict=conflict)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        db.insert_many("photos", [(1, {evil: 1})])
    assert db.select("id", "photos", 1) == []


def test_what_cannot_be_told_is_refused(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    with pytest.raises(Misused, match="which rows a conflict left out"):
        db.insert_many("photos", rows_of(8), returning="id", on_conflict=OnConflict("id"))
    with pytest.raises(Misused, match="needs the fields"):
        OnConflict(update=["caption"])
    with pytest.raises(ShardctlError, match="key"):
        db.insert_many("photos", [(1.5, {"id": 1, "user_id": 1})])
    with pytest.raises(ShardctlError, match="key"):
        db.select_many("id", "photos", [[1]], "user_id")
    assert all_ids(db) == []


def test_a_mistake_in_one_row_names_what_was_written(fleet_routed: Fleet, router: Open) -> None:
    db = router(fleet_routed.topology())
    rows = rows_of(100)
    rows[6][1]["user_id"] = None  # in shard 6, on node b
    with pytest.raises(InsertedInPart, match="of 0 this is unknown: node b: null value") as told:
        db.insert_many("photos", rows)
    written = [n for n in range(100) if n % 8 < 4]
    assert sorted(told.value.written) == written
    assert told.value.missing == tuple(n for n in range(100) if n % 8 >= 4)
    assert told.value.unknown == ()
    assert isinstance(told.value.__cause__, psycopg.errors.NotNullViolation)
    assert all_ids(db) == written
    rows[6][1]["user_id"] = 6
    assert db.insert_many("photos", [rows[n] for n in told.value.missing]) == 52 - 4
    assert all_ids(db) == list(range(100))
    with pytest.raises(psycopg.errors.NotNullViolation):  # of a single node: nothing was written
        db.insert_many(
            "photos", [(6, {"id": 900, "user_id": 6}), (7, {"id": 901, "user_id": None})]
        )
    assert all_ids(db) == list(range(100))


@pytest.mark.parametrize("returning", [None, "id"])
def test_a_value_that_cannot_be_sent_names_what_was_written(
    fleet_routed: Fleet, router: Open, returning: str | None
) -> None:
    db = router(fleet_routed.topology())
    rows = rows_of(16)
    rows[6][1]["caption"] = "\ud800"  # in shard 6, on node b; UTF-8 has no such character
    with pytest.raises(InsertedInPart) as told:
        db.insert_many("photos", rows, returning)
    assert isinstance(told.value.__cause__, UnicodeEncodeError)
    assert all_ids(db) == sorted(told.value.written) == [n for n in range(16) if n % 8 < 4]
    assert told.value.missing == tuple(n for n in range(16) if n % 8 >= 4)


def test_a_row_that_a_trigger_leaves_out_is_told(fleet_routed: Fleet, router: Open) -> None:
    fleet_routed.execute(
        "a",
        "CREATE FUNCTION shard3.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL;"
        " END'; CREATE TRIGGER refuse BEFORE INSERT ON shard3.photos FOR EACH ROW"
        " WHEN (NEW.id = 3) EXECUTE FUNCTION shard3.refuse()",
    )
    db = router(fleet_routed.topology())
    with pytest.raises(NothingReturned, match="row for photos in shard 3 was not inserted"):
        db.insert_many("photos", rows_of(4), returning="id")
    assert all_ids(db) == []
    assert db.insert_many("photos", rows_of(4)) == 3


def test_a_shard_that_moves_meanwhile_gets_every_row_once(
    fleet_routed: Fleet, router: Open
) -> None:
    db = router(fleet_routed.topology(), patience=30)
    rows, told = rows_of(10_000), list[Any]()
    with moved_by_hand(fleet_routed, 2, "a", "b"):
        writer = threading.Thread(target=lambda: told.append(db.insert_many("photos", rows)))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
    writer.join(60)
    assert told == [10_000]
    assert all_ids(db) == list(range(10_000))
    assert len(db.select("id", "photos", 2)) == 1250
    assert db.node_of(2) == "b"


def test_rows_of_many_keys_follow_a_shard_that_moved(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 3)
    db = router(fleet_routed.topology())
    with moved_by_hand(fleet_routed, 2, "a", "b"):
        pass
    found = db.select_many("id", "photos", range(8), "user_id", order_by="-id", limit=2)
    assert found == [[] if key == 2 else [(3,), (2,)] for key in range(8)]
    assert db.stats().repeated == 1


def test_a_connection_lost_before_commit_is_replaced(fleet_routed: Fleet, router: Open) -> None:
    slow = (
        "CREATE FUNCTION shard1.wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN"
        " PERFORM pg_catalog.pg_advisory_xact_lock_shared(77); RETURN NEW; END';"
        "CREATE TRIGGER wait BEFORE INSERT ON shard1.photos FOR EACH ROW"
        " EXECUTE FUNCTION shard1.wait()"
    )
    fleet_routed.execute("a", slow)
    db = router(fleet_routed.topology())
    told: list[Any] = []
    with fleet_routed.connect("a") as holding:
        holding.execute("SELECT pg_advisory_lock(77)")
        writer = threading.Thread(
            target=lambda: told.append(db.insert_many("photos", rows_of(800)))
        )
        writer.start()
        waits = (
            "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = 77"
        )
        wait_for(lambda: fleet_routed.query("a", waits))
        ((pid,),) = fleet_routed.query("a", waits)
        assert pid in backends(fleet_routed, "a")
        fleet_routed.execute("a", f"SELECT pg_terminate_backend({pid}, 5000)")
        holding.execute("SELECT pg_advisory_unlock(77)")
        writer.join(60)
    assert told == [800]
    assert all_ids(db) == list(range(800))


@pytest.mark.parametrize("done", [True, False])
def test_a_node_that_fails_at_its_commit_leaves_its_rows_unknown(
    fleet_routed: Fleet, router: Open, done: bool
) -> None:
    with breaking.at_commit(fleet_routed, "a", done=done) as topology:
        db = router(topology)
        with pytest.raises(InsertedInPart, match="of 52 this is unknown") as told:
            db.insert_many("photos", rows_of(100))
        db.close()
    assert told.value.unknown == tuple(n for n in range(100) if n % 8 < 4)
    assert told.value.missing == ()
    assert sorted(told.value.written) == [n for n in range(100) if n % 8 >= 4]
    assert isinstance(told.value.errors["a"], CommitUnknown)  # type: ignore[index]  # its name
    db = router(fleet_routed.topology())
    assert all_ids(db) == (list(range(100)) if done else sorted(told.value.written))


def test_many_rows_are_several_transactions(
    fleet_routed: Fleet, router: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "ROWS_A_TRANSACTION", 7)
    db = router(fleet_routed.topology(), pool=PoolSettings(max_size=2))
    assert db.insert_many("photos", rows_of(200)) == 200
    assert db.insert_many("photos", rows_of(200), on_conflict=OnConflict()) == 0
    assert all_ids(db) == list(range(200))


def test_rows_of_many_keys_come_by_key(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 5)
    db = router(fleet_routed.topology())
    keys = [6, 1, 99, 1]
    found = db.select_many(["id", "user_id"], "photos", keys, "user_id", order_by="-id", limit=2)
    assert found == [[(5, 6), (4, 6)], [(5, 1), (4, 1)], [], [(5, 1), (4, 1)]]
    some = db.select_many("id", "photos", [1, 6], "user_id", "id > %s AND id < %s", [1, 4], "id")
    assert some == [[(2,), (3,)], [(2,), (3,)]]
    named = db.select_many(
        "id", "photos", [1], "user_id", "id = %(id)s OR caption LIKE '%%5'", {"id": 1}, "id"
    )
    assert named == [[(1,), (5,)]]
    assert db.select_many("id", "photos", [], "user_id") == []
    assert len(db.select_many("id", "photos", range(1000), "user_id")) == 1000


def test_a_key_of_the_wrong_type_is_refused(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 2)
    db = router(fleet_routed.topology())
    with pytest.raises(IdsUnlike, match="user_id is of type bigint"):
        db.select_many("id", "photos", ["1"], "user_id")
    with pytest.raises(psycopg.errors.UndefinedFunction):
        db.select_many("id", "photos", [1], "caption")
    with pytest.raises(psycopg.errors.UndefinedFunction):
        db.select_many("id", "photos", [UUID(int=5)], "user_id")


def test_updates_and_deletes_give_what_they_changed(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 3)
    db = router(fleet_routed.topology())
    changed = db.update("photos", 1, {"caption": "x"}, "id < %s", [3], returning="id")
    assert sorted(changed) == [1, 2]
    named = db.update(
        "photos", 1, {"caption": "100 %"}, "id = %(id)s", {"id": 1}, returning=["id", "caption"],
        row_factory=dict_row,
    )  # fmt: skip
    assert named == [{"id": 1, "caption": "100 %"}]
    assert db.update("photos", 1, {"caption": "x"}, "id = 99", returning="id") == []
    gone = db.delete("photos", 1, "id = %s", [2], returning=sql.SQL("id + 1"))
    assert gone == [(3,)]
    assert db.delete("photos", 1, "id = 99", returning=["id"]) == []
    assert db.delete("photos", 1, "id = 3") == 1


def test_rows_may_be_of_any_type(fleet_routed: Fleet, router: Open) -> None:
    fill(fleet_routed, 2)
    db = router(fleet_routed.topology())
    fields, made = ["id", "user_id"], class_row(Photo)
    assert db.select(fields, "photos", 1, order_by="id", limit=1, row_factory=made) == [Photo(1, 1)]
    assert db.fetch_many(fields, "photos", [(1, 2), (6, 9)], row_factory=made) == [
        Photo(2, 1), None,
    ]  # fmt: skip
    assert db.select_many(fields, "photos", [6], "user_id", order_by="id", row_factory=made) == [
        [Photo(1, 6), Photo(2, 6)]
    ]
    found = db.scatter(fields, "photos", "id = 1", order_by=["-user_id", "made"], row_factory=made)
    assert found.rows == [Photo(1, user) for user in range(7, -1, -1)]
    assert db.insert("photos", 1, {"id": 9, "user_id": 1}, fields, row_factory=made) == Photo(9, 1)
    assert db.select("id", "photos", 1, "id = 9", row_factory=scalar_row) == [9]
    (row,) = db.select(fields, "photos", 1, "id = 9", row_factory=namedtuple_row)
    assert (row.id, row.user_id) == (9, 1)
    with pytest.raises(TypeError):
        db.select(["id", "caption"], "photos", 1, row_factory=made)
    assert storms.missing(db.db) == {}
    assert db.shard_of(1) == ShardId(1)
