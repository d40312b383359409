"""Clear what moves have left behind, under the locks of the nodes that have it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.errors import Incomplete, ShardctlError
from shardctl.libpq import reason_of
from shardctl.moves import doctor
from shardctl.postgres import queries, slots
from shardctl.postgres.logical import closing, publication, slot, structure, subscription
from shardctl.state import events, journal, leash, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.moves.doctor import Left
    from shardctl.postgres.connection import Connection
    from shardctl.state.move_objects import Kind, MoveObject
    from shardctl.topology.model import Topology

QUERIES = queries.load("shardctl.moves", "doctor.sql")

_LOCK_TIMEOUT = "5s"
_TRIGGERS_S = 10.0


def clear(topology: Topology, chosen: Sequence[Left], report: Callable[[Left], None]) -> None:
    """Drop what is chosen and no open move owns once the nodes' locks are held.

    `report` gets each thing that was dropped. What a running command holds, and what has an owner
    by now, stays. Raises NodeLocked with nothing done, left_uncleared when all else is done.
    """
    concerned = {one.node for one in chosen}
    nodes = [name for name in topology.nodes if name in concerned]
    with lock.held(topology, nodes, command=doctor.COMMAND) as sessions:
        fleet = doctor.look(topology, purpose=lock.purpose(doctor.COMMAND))
        wanted = {(one.node, one.object.kind, one.object.name) for one in chosen}
        errors: list[str] = []
        failed: set[tuple[str, str]] = set()
        for session in sessions.values():
            session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
        for one in doctor.left(fleet):
            named = (one.node, one.object.kind, one.object.name)
            moved = (one.node, one.object.move)
            if one.why_not is not None or named not in wanted:
                continue
            if one.object.kind == "records" and moved in failed:
                continue  # triggers that stay read them
            try:
                _drop(sessions[one.node], one.object)
            except (psycopg.Error, ShardctlError) as error:
                reason = reason_of(error) if isinstance(error, psycopg.Error) else error.message
                errors.append(f"node {one.node}: {one.object.kind} {one.object.name}: {reason}")
                failed.add(moved)
            else:
                report(one)
    if errors:
        raise Incomplete(
            "left_uncleared",
            "; ".join(errors),
            hint="correct what they name, then `shardctl moves doctor` again: it clears the rest",
        )


def _drop(session: Connection, one: MoveObject) -> None:
    """Drop one thing, if it is there, and write down that it was."""
    _CLEARING[one.kind](session, one)
    events.record(session, doctor.COMMAND, f"cleared {one.kind} {one.name} of move {one.move}")


def _slot(session: Connection, one: MoveObject) -> None:
    leash.end(session, one.name)
    drop = slots.drop if one.detail.startswith("physical") else slot.drop
    drop(session, one.name)


def _triggers(session: Connection, one: MoveObject) -> None:
    # All schemas of the move at once: the row that triggers read goes with the last.
    found = session.execute(QUERIES["open_schemas"], {"move": one.move})
    schemas = [name for (name,) in found]
    deadline = time.monotonic() + _TRIGGERS_S
    # Nothing says whether the role had USAGE on the source, so it keeps it.
    closing.remove(session, one.move, schemas, keep="", wanted=(), deadline=deadline)


def _role(session: Connection, one: MoveObject) -> None:
    queries.rows_of_last(session, QUERIES["drop_role"].format(role=sql.Identifier(one.name)))


_CLEARING: dict[Kind, Callable[[Connection, MoveObject], object]] = {
    "subscription": lambda session, one: subscription.drop(session, one.name),
    "slot": _slot,
    "publication": lambda session, one: publication.drop(session, one.name),
    "triggers": _triggers,
    "schema": lambda session, one: structure.drop(session, [one.name]),
    "function": lambda session, one: session.execute(
        QUERIES["drop_function"].format(name=sql.Identifier(one.name))
    ),
    "role": _role,
    "guard": lambda session, one: leash.end(session, journal.slot(one.move)),
    "records": lambda session, one: queries.rows_of_last(
        session, QUERIES["forget"].format(move=sql.Literal(one.move))
    ),
}
