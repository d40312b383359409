"""Progress of a move: a table of its own, which `moves show` reads from any terminal."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.fanout import Silent
from shardctl.state import journal, progress
from shardctl.state.journal import MoveState, MoveUnderWay
from shardctl.state.progress import Kept

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

ID = "5f3a9c1e"


def begin(
    session: psycopg.Connection[Any], shards: list[int], move: str = ID, method: str = "clone"
) -> None:
    schemas = [f"shard{shard}" for shard in shards]
    journal.open_move(
        session, move=move, method=method, source="a", target="b", shards=shards,
        schemas=schemas, retired=[f"{s}__retired_{move}" for s in schemas], plan={},
    )  # fmt: skip


def row(session: psycopg.Connection[Any]) -> Any:
    return session.execute("SELECT move::text FROM shardctl.move").fetchone()


def test_progress_is_shown_and_leaves_the_journals_row_alone(fleet_8: Fleet) -> None:
    now = 0.0
    with fleet_8.connect("a") as session:
        begin(session, [2])
        before = row(session)
        kept = Kept(Silent(), session, ID, clock=lambda: now)
        kept.expect("b", "copying", 4000)
        now = 0.9
        kept.advance("b", 500)
        assert progress.read(session)[ID].bytes == 0  # once a second
        now = 2.0
        kept.advance("b", 500)
        assert row(session) == before
        shown = json.loads(fleet_8.here("moves", "show", "-o", "json").stdout)["progress"]
        assert shown.pop("at").endswith("Z")
        assert shown == {
            "phase": "copying",
            "bytes": 1000,
            "total_bytes": 4000,
            "bytes_per_s": 500,
            "eta_s": 6.0,
        }
        said = fleet_8.here("moves", "show").stdout
        assert "copying: 1000 bytes of 4000 bytes, 500 bytes a second, about 6 s to go (at " in said
        progress.end(session, ID)
        assert json.loads(fleet_8.here("moves", "show", "-o", "json").stdout)["progress"] is None


def test_a_node_of_an_older_format_is_copied_without_progress(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session:
        begin(session, [2])
        session.execute("DROP TABLE shardctl.move_progress")
        kept = Kept(Silent(), session, ID)
        kept.expect("b", "copying", 10)
        kept.advance("b", 10)
        progress.end(session, ID)
        assert progress.read(session) == {}


def test_a_role_that_may_not_write_progress_copies_without(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session:
        begin(session, [2])
        kept = Kept(Silent(), session, ID)
        kept.expect("b", "copying", 10)
        session.execute(f"GRANT SELECT ON shardctl.move_progress TO {fleet_8.role}".encode())
        session.execute(f"SET ROLE {fleet_8.role}".encode())
        kept = Kept(Silent(), session, ID)
        kept.expect("b", "finishing", 0)
        progress.end(session, ID)
        assert progress.read(session)[ID].phase == "copying"


def test_a_lost_source_does_not_end_the_copy_by_its_progress(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session, fleet_8.connect("a") as beside:
        begin(session, [2])
        kept = Kept(Silent(), session, ID)
        beside.execute("SELECT pg_terminate_backend(%s, 5000)", [session.info.backend_pid])
        kept.expect("b", "copying", 10)
        kept.expect("b", "finishing", 0)
        assert session.closed


def test_two_moves_of_one_shard_are_kept_apart_and_others_are_not(fleet_8: Fleet) -> None:
    """What other methods will need; preflight allows one move at a time still."""
    with fleet_8.connect("a") as session:
        begin(session, [1, 2], "00000001", "stream")
        begin(session, [0, 3], "00000002", "stream")
        with pytest.raises(MoveUnderWay):
            begin(session, [2], "00000003", "stream")
        begin(session, [4], "00000004")
        with pytest.raises(MoveUnderWay):  # two clones take each other's journal along
            begin(session, [5], "00000005")
        ended = journal.find(session, "00000001")
        assert ended is not None
        journal.copy(session, dataclasses.replace(ended, revision=2, state=MoveState.done))
        begin(session, [2], "00000003", "stream")
        session.execute("UPDATE shardctl.move SET reverses = '00000001' WHERE id = '00000003'")
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            session.execute("UPDATE shardctl.move SET reverses = 'ffffffff' WHERE id = '00000003'")
