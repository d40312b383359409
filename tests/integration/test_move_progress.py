"""Progress of a move: a table of its own, which `moves show` reads from any terminal."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.fanout import Silent
from shardctl.meter import BYTES
from shardctl.state import journal, progress
from shardctl.state.journal import MoveState, MoveUnderWay
from shardctl.state.progress import kept
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    import psycopg

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


def _read(fleet: Fleet) -> list[progress.MoveProgress]:
    with fleet.connect("a") as session:
        return list(progress.read(session).values())


def test_progress_is_shown_and_leaves_the_journals_row_alone(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session:
        begin(session, [2])
        before = row(session)
        with kept(Silent(), lambda: fleet_8.connect("a"), ID) as copy:
            copy.expect("b", "copying", 4 * 1024**2, BYTES)
            for _ in range(4):
                copy.advance("b", 256 * 1024)
            wait_for(lambda: any(one.bytes for one in _read(fleet_8)))
            assert row(session) == before
            shown = json.loads(fleet_8.here("moves", "show", "-o", "json").stdout)["progress"]
            assert shown.pop("at").endswith("Z")
            assert (shown["phase"], shown["bytes"], shown["total_bytes"]) == (
                "copying", 1024**2, 4 * 1024**2
            )  # fmt: skip
            wait_for(lambda: any(one.bytes_per_s and one.eta_s for one in _read(fleet_8)))
            said = fleet_8.here("moves", "show").stdout
            assert re.search(
                r"\ncopying: 1,024 kB of 4,096 kB, [\d.,]+ [kM]B/s, \d+ s left\n", said
            )
        assert json.loads(fleet_8.here("moves", "show", "-o", "json").stdout)["progress"] is None
        assert row(session) == before


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
