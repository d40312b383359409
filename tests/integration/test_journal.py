"""The row of a move on a real server: what guards decide by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    import psycopg

    from shardctl.state.journal import Move
    from tests.fixtures.fleets.fleet import Fleet

ID = "5f3a9c1e"


def found(session: psycopg.Connection) -> Move:
    move = journal.find(session, ID)
    assert move is not None
    return move


def test_a_note_leaves_alone_when_the_state_changed_and_a_transition_does_not(
    fleet_8: Fleet,
) -> None:
    with fleet_8.connect("a") as session:
        journal.open_move(
            session, move=ID, method="clone", source="a", target="c", shards=[2],
            schemas=["shard2"], retired=[f"shard2__retired_{ID}"], plan={},
        )  # fmt: skip
        opened = found(session)
        journal.note(session, opened, proof="compared", report={"rows": 1})
        noted = found(session)
        assert (noted.proof, noted.report) == ("compared", {"rows": 1})
        assert (noted.revision, noted.changed) == (opened.revision + 1, opened.changed)
        assert journal.advance(session, ID, [MoveState.reserved], MoveState.aborted)
        ended = found(session)
        assert ended.revision == noted.revision + 1
        assert ended.ended is not None
        assert ended.ended >= ended.changed > noted.changed
        journal.note(session, noted, proof="differs")  # of a state that is over
        assert found(session) == ended
