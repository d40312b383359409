"""Restarts a source that accepts no logins because the WAL of a move's slot has filled its disk.

Such a server answers no query and cannot start. So this works on its host: it removes the slot and
the WAL that only the slot kept from the stopped server, and starts it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused, UsageError
from shardctl.hosts import scripts
from shardctl.moves import wal
from shardctl.postgres import hosted
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.state import journal
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from shardctl.postgres.hosted import HostedServer
    from shardctl.topology.model import Topology

_MOVE = re.compile("[0-9a-f]{8}")
_SLOT = re.compile("shardctl_([0-9a-f]{8})(_clone)?")
_ENOUGH = 64 << 20
"""Free bytes, four WAL segments, above which a running server is not stopped."""
_SECONDS = 600.0


def source_serves(node: str, what: str, hint: str) -> Refused:
    """Report a node that does not need a rescue."""
    return Refused("source_serves", f"node {node}: {what}", hint=hint)


def slot_unclear(node: str, found: list[str]) -> Refused:
    """Report a stopped server whose slots do not name exactly one move."""
    listed = ", ".join(found) or "none"
    return Refused(
        "slot_unclear",
        f"node {node}: specify the move whose slot has filled its disk; its slots: {listed}",
        hint=f"run `shardctl moves abort MOVE --restart-source {node}`",
    )


@dataclass(frozen=True, slots=True)
class Rescue:
    """The plan of a rescue: the move whose slots are removed, and the server."""

    node: NodeName
    move: str
    slots: tuple[str, ...]
    """A clone that is to follow by a stream has two."""
    server: HostedServer
    running: bool

    @property
    def sentence(self) -> str:
        """The plan in words."""
        stop = "stop its server, " if self.running else ""
        return (
            f"node {self.node}: {stop}remove slot {' and slot '.join(self.slots)} and the WAL that "
            f"only {'this slot' if len(self.slots) == 1 else 'these slots'} kept from its data "
            "directory, and start the server"
        )


def look(topology: Topology, node: str, move: str | None, *, purpose: str) -> Rescue:
    """Check on a node's host why it accepts no logins; changes nothing.

    Raises UsageError, source_serves where it accepts logins, rejects this one, or has room on its
    disk, slot_unclear, and what its host refuses.
    """
    of = topology.nodes.get(NodeName(node))
    if of is None or (move is not None and not _MOVE.fullmatch(move)):
        raise UsageError(
            f"unknown node {node!r}" if of is None else f"invalid move id {move!r}",
            hint=f"nodes: {', '.join(topology.nodes)}; a move id has 8 hexadecimal digits",
        )
    try:
        connect(of, topology.database, purpose=purpose).close()
    except NodeUnavailable as error:
        refused = error
    else:
        raise source_serves(
            node, "it accepts logins", "run `shardctl moves abort` without --restart-source"
        )
    if of.data_directory is None:
        raise source_serves(
            node,
            "it has no data_directory in the topology",
            "add data_directory to the node, or do it by hand: docs/operations/failures.md",
        )
    server = hosted.find(of, of.data_directory)
    running = server.running()
    free, _ = wal.free_bytes(of, str(of.data_directory))
    if running and refused.answered:
        # It may serve applications, and reject only this login.
        raise source_serves(
            node,
            f"its server runs and answers: {refused.reason}",
            "allow shardctl to log in, or wait while the server recovers; if its disk is full, "
            "stop the server first (pg_ctl stop -m immediate)",
        )
    if running and (free is None or free > _ENOUGH):
        room = "an unknown part" if free is None else wal.megabytes(free)
        raise source_serves(
            node,
            f"its server runs and its disk is not full ({room} free)",
            f"check its log for why it accepts no logins: {refused.reason}",
        )
    move, slots = _choose(of.name, move, _script(server, "list").split())
    return Rescue(of.name, move, slots, server, running)


def _choose(node: NodeName, move: str | None, slots: list[str]) -> tuple[str, tuple[str, ...]]:
    """Give the move, and which of a server's slots are its own; raises slot_unclear."""
    by_move: dict[str, list[str]] = defaultdict(list)
    for slot in sorted(slots):
        if found := _SLOT.fullmatch(slot):
            by_move[found[1]].append(slot)
    if move is None:
        if len(by_move) != 1:
            raise slot_unclear(node, slots)
        [move] = by_move
    return move, tuple(by_move.get(move, [journal.slot(move)]))


def carry_out(rescue: Rescue) -> None:
    """Remove the slots and their WAL from the server, and start it; repeatable.

    WAL that other slots or the archiver need remains. Raises source_serves for a server that was
    started since, server_did_not_stop, server_did_not_start where the disk is still too full, and
    CommandFailed.
    """
    server, programs = rescue.server, rescue.server.binaries
    if server.running():
        if not rescue.running:
            raise source_serves(
                rescue.node, "its server was just started", "run the same command again"
            )
        # Every other mode writes a checkpoint, for which the disk may have no room.
        server.stop(mode="immediate")
    tools = [programs.program("pg_controldata"), programs.program("pg_archivecleanup")]
    for slot in rescue.slots:
        _script(server, "drop", slot, *tools)
    server.start()


def _script(server: HostedServer, part: str, *words: str) -> str:
    place = str(server.data_directory)
    return scripts.run(
        server.machine, "slot", part, place, *words, user=server.account, timeout=_SECONDS
    )
