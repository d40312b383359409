"""A source that takes no logins, because the WAL of a move's slot has filled its disk.

Nothing can be asked of such a server, and it cannot start. So this works on its host: it takes the
slot and the WAL that only the slot kept from the stopped server, and starts it.
"""

from __future__ import annotations

import re
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
_SLOT = re.compile("shardctl_([0-9a-f]{8})")
_ENOUGH = 64 << 20
"""Bytes of free disk, four segments of WAL, with which a server that runs is not stopped."""
_SECONDS = 600.0


def source_serves(node: str, what: str, hint: str) -> Refused:
    """Report a node that needs no rescue."""
    return Refused("source_serves", f"node {node}: {what}", hint=hint)


def slot_unclear(node: str, found: list[str]) -> Refused:
    """Report a stopped server of which it is not clear which move's slot has filled its disk."""
    listed = ", ".join(found) or "none"
    return Refused(
        "slot_unclear",
        f"node {node}: which move's slot is meant is not clear; its slots: {listed}",
        hint=f"name the move: `shardctl moves abort MOVE --restart-source {node}`",
    )


@dataclass(frozen=True, slots=True)
class Rescue:
    """What is to be done: which move's slot is taken from which server."""

    node: NodeName
    move: str
    server: HostedServer
    running: bool

    @property
    def sentence(self) -> str:
        """Say it to an operator."""
        stop = "stop its server, " if self.running else ""
        return (
            f"node {self.node}: {stop}remove slot {journal.slot(self.move)} and the WAL that only "
            "this slot kept from its data directory, and start the server"
        )


def look(topology: Topology, node: str, move: str | None, *, purpose: str) -> Rescue:
    """See on a node's host what keeps it from logins; changes nothing.

    Raises UsageError, source_serves where it takes logins, answers that it takes this one not, or
    has room on its disk, slot_unclear, and what its host refuses.
    """
    of = topology.nodes.get(NodeName(node))
    if of is None or (move is not None and not _MOVE.fullmatch(move)):
        raise UsageError(
            f"{node!r} is not a node of the topology" if of is None else f"{move!r} is not a move",
            hint=f"nodes: {', '.join(topology.nodes)}; a move is 8 hexadecimal digits",
        )
    try:
        connect(of, topology.database, purpose=purpose).close()
    except NodeUnavailable as error:
        refused = error
    else:
        raise source_serves(node, "it takes logins", "`shardctl moves abort` needs no more")
    if of.data_directory is None:
        raise source_serves(
            node,
            "the topology does not say where its data directory is",
            "write data_directory into the topology, or do it by hand: docs/operations/failures.md",
        )
    server = hosted.find(of, of.data_directory)
    running = server.running()
    free, _ = wal.free_bytes(of, str(of.data_directory))
    if running and refused.answered:
        # It may serve its applications, and refuse this one login.
        raise source_serves(
            node,
            f"its server runs, and answers: {refused.reason}",
            "let shardctl log in, or wait while the server recovers; if its disk is full, stop "
            "the server first (pg_ctl stop -m immediate)",
        )
    if running and (free is None or free > _ENOUGH):
        room = "an unknown part" if free is None else wal.megabytes(free)
        raise source_serves(
            node,
            f"its server runs, and its disk is not full ({room} free)",
            f"see in its log why it takes no logins: {refused.reason}",
        )
    slots = _script(server, "list").split()
    moves = [found[1] for slot in slots if (found := _SLOT.fullmatch(slot))]
    if move is None and len(moves) != 1:
        raise slot_unclear(node, slots)
    return Rescue(of.name, move or moves[0], server, running)


def carry_out(rescue: Rescue) -> None:
    """Take the slot and its WAL from the server, and start that; repeatable.

    WAL that other slots or the archiver need stays. Raises source_serves for a server that was
    started since, server_did_not_stop, server_did_not_start where what is left is too little
    room, and CommandFailed.
    """
    server, programs = rescue.server, rescue.server.binaries
    if server.running():
        if not rescue.running:
            raise source_serves(
                rescue.node, "its server was started meanwhile", "run the same command again"
            )
        # Every other mode writes a checkpoint, for which there may be no room.
        server.stop(mode="immediate")
    tools = [programs.program("pg_controldata"), programs.program("pg_archivecleanup")]
    _script(server, "drop", journal.slot(rescue.move), *tools)
    server.start()


def _script(server: HostedServer, part: str, *words: str) -> str:
    place = str(server.data_directory)
    return scripts.run(
        server.machine, "slot", part, place, *words, user=server.account, timeout=_SECONDS
    )
