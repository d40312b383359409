"""After an episode: everything runs again, and each unfinished move is ended by one command."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from tests.fixtures.servers.postgres import wait_for
from tests.soak.commands import Command
from tests.soak.fleet import NODES, POOLERS
from tests.soak.history import Attempt

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.soak.fleet import Fleet

OPEN = ("reserved", "undone", "fenced", "drained", "promoting", "claimed", "routed")
OVER = ("done", "aborted", "unconfirmed")
UNDOABLE = OPEN[:4]
_READY_S = 60.0
_COMMAND_S = 120.0
_COMMANDS = 0x5AADC71
"""The class of the locks that commands hold; the guard of a slot has others."""
_LOCKED = (
    f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = {_COMMANDS}"
)


class Broken(Exception):
    """The fleet cannot go on: what happened is told, and the checker judges it."""


def start_all(fleet: Fleet, ran: Collection[str]) -> None:
    """Start what ran before and does not, and wait until all of it answers."""
    owning = {str(node.name) for node in fleet.topology().owning()}
    for node in (node for node in NODES if node in owning or node in ran):
        fleet.start(node)
    for pooler in POOLERS:
        if fleet.pooler_pid(pooler) is None:
            fleet.start_pooler(pooler)
    try:
        wait_for(lambda: all(fleet.answers(node) for node in owning), seconds=_READY_S)
    except AssertionError as error:
        left = [node for node in sorted(owning) if not fleet.answers(node)]
        raise Broken(f"nodes {', '.join(left)} do not answer") from error


def states(fleet: Fleet) -> dict[str, str]:
    """Give the state of every move, of all nodes' journals: the newest, or how it has ended.

    A move that a full disk stopped may be done on its target and not on its source.
    """
    newest: dict[str, tuple[bool, int, str]] = {}
    claimed: dict[str, str] = {}
    for node in NODES:
        try:
            with fleet.connect(node, connect_timeout=3) as session:
                rows = session.execute("SELECT id, revision, state FROM shardctl.move").fetchall()
        except psycopg.Error:
            continue
        for move, revision, state in rows:
            found = (state in OVER, revision, state)
            newest[move] = max(newest.get(move, found), found)
            if state not in OVER and state not in UNDOABLE:
                claimed[move] = state
    return {move: state for move, (_, _, state) in newest.items()} | claimed


def wait_unlocked(fleet: Fleet) -> None:
    """Wait until the servers see that a killed process has gone."""

    def unlocked() -> bool:
        for node in NODES:
            try:
                with fleet.connect(node, connect_timeout=3) as session:
                    if session.execute(_LOCKED.encode()).fetchone():
                        return False
            except psycopg.Error:
                continue
        return True

    try:
        wait_for(unlocked, seconds=_READY_S)
    except AssertionError as error:
        raise Broken("a lock of a command that has ended is still held") from error


def end_moves(fleet: Fleet, verb: str, attempts: list[Attempt], ran: list[Command]) -> None:
    """End every move that is not over by one resume or one abort, whichever the state allows."""
    wait_unlocked(fleet)
    for move, state in states(fleet).items():
        if state in OVER:
            continue
        other = {"resume": "abort", "abort": "resume"}
        verbs = [verb, other[verb]] if state in UNDOABLE else ["resume"]
        for one in verbs:
            command = Command(fleet, ["moves", one, move, "--yes"])
            ran.append(command)
            code = command.wait(_COMMAND_S)
            if code is None:
                command.close()
            wait_unlocked(fleet)
            over = states(fleet).get(move) in OVER
            given = Attempt(move, one, time.monotonic(), -1 if code is None else code, over)  # type: ignore[arg-type]
            attempts.append(given)
            if over:
                break
        else:
            raise Broken(f"move {move} is {states(fleet).get(move)}: {command.said()[-1500:]}")
