"""The server that already listens at the target's address."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import ShardctlError
from shardctl.hosts import files, ports
from shardctl.hosts.reach import host_of
from shardctl.meter import listed
from shardctl.moves import round_trips
from shardctl.moves.preflight import target
from shardctl.moves.preflight.schemas import tables, way_in
from shardctl.moves.preflight.subject import QUERIES, refused
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision.observe import connect_for_maintenance

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.cross_schema import Some
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

logger = logging.getLogger(__name__)

_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Occupant:
    """A server that runs at the target's address."""

    in_recovery: bool
    data_directory: Path | None
    """None where the role may not read it."""
    shards: tuple[str, ...]
    """Schemas of live shards."""
    retired: int
    """How many retired schemas it has."""
    data: Mapping[str, Some]
    """Tables outside shards, by database."""
    closed: Mapping[str, str]
    """Databases that shardctl could not connect to, and why."""
    unproven: tuple[str, ...] = ()
    """Retired schemas of unconfirmed moves from this node."""


def look(context: Context) -> Occupant | None:
    """Look at the server there; None if none listens. Raises TargetUnfit, NodeUnavailable."""
    topology, node = context.topology, context.target
    if not _listens(node):
        return None
    try:
        with connect_for_maintenance(topology, node, context.purpose, observing=True) as session:
            return _ask(topology, node, session, context.purpose)
    except NodeUnavailable as error:
        who = _listener(node)
        raise TargetUnfit(
            node.name,
            "port_taken",
            f"{who or 'a program'} listens at {node.host}:{node.port}, and shardctl cannot log in: "
            f"{error.reason}",
            hint=f"allow {topology.database.user} to log in there, or stop that program, or give "
            "the node another port",
        ) from error
    except psycopg.Error as error:
        raise refused(node, topology.database.user, error) from error


def measure(context: Context) -> float:
    """Measure a round trip to the target's machine, in ms."""
    context.need(look)  # an unreachable machine is not measured
    return round_trips.of_machine(context.target)


def same_place(context: Context) -> bool | None:
    """Return whether its data directory is the topology's; None where that is unknown."""
    there, path = context.of(look), context.target.data_directory
    if there is None or there.data_directory is None or path is None:
        return None
    host, user = context.need(target.look).host, context.need(target.look).account
    return files.place_of(host, path, user=user) == files.place_of(
        host, there.data_directory, user=user
    )


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse what would be lost."""
    node, there, user = context.target, context.need(look), context.topology.database.user
    if there is None:
        return
    if context.of(same_place) is False:
        yield TargetUnfit(
            node.name,
            "other_directory",
            f"the topology names data_directory {node.data_directory}, but the server at "
            f"{node.host}:{node.port} runs in {there.data_directory}",
            hint="correct the node's port or data_directory in the topology, or stop that server",
        )
    if there.in_recovery:
        yield TargetUnfit(
            node.name,
            "target_standby",
            "a standby runs there, but the move makes its own clone",
            hint="stop the standby and remove its data directory, or give the node another address",
        )
    if there.shards:
        yield TargetUnfit(
            node.name,
            "target_has_shards",
            f"it has shards: {listed(there.shards)}",
            hint="a clone needs a node without shards: add one to the topology",
        )
    if there.unproven:
        yield TargetUnfit(
            node.name,
            "target_has_unproven_copies",
            "it has retired schemas of an unconfirmed move, which a clone would replace: "
            f"{listed(there.unproven)}",
            hint="check that no rows in them are missing elsewhere, then run "
            "`shardctl prune --accept-unconfirmed`",
        )
    for database, some in there.data.items():
        yield TargetUnfit(
            node.name,
            "target_has_data",
            f"its database {database} has tables, which a clone would replace: {some}",
            hint="move or drop them, or add another node to the topology",
        )
    for database, reason in there.closed.items():
        yield TargetUnfit(
            node.name,
            "database_closed",
            f"cannot connect to database {database}, which a clone would replace: {reason}",
            hint=way_in(user, database),
        )


def _ask(topology: Topology, node: Node, session: Connection, purpose: str) -> Occupant:
    data: dict[str, Some] = {}
    closed: dict[str, str] = {}
    shards: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    retired = 0
    (in_recovery,) = queries.one(session, "SELECT pg_is_in_recovery()")
    settings = session.execute(QUERIES["settings"], {"names": ["data_directory"]}).fetchone()
    others = [name for (name,) in session.execute(QUERIES["databases"])]
    for name in (session.info.dbname, *others):
        try:
            with connect(
                node, topology.database, purpose=purpose, dbname=name, autocommit=True
            ) as inside:
                if name == topology.database.name:
                    found = [schema for (schema,) in inside.execute(QUERIES["schemas"])]
                    shards = tuple(s for s in sorted(found) if _is_shards(topology, s))
                    retired = sum("__retired_" in schema for schema in found)
                    (journal,) = queries.one(inside, "SELECT to_regclass('shardctl.move')::text")
                    if retired and journal is not None:
                        named = {"node": node.name}
                        unproven = tuple(s for (s,) in inside.execute(QUERIES["unproven"], named))
                some = tables(inside, shards if name == topology.database.name else ())
        except NodeUnavailable as error:
            closed[name] = error.reason
        else:
            if some.total:
                data[name] = some
    return Occupant(
        in_recovery=in_recovery,
        data_directory=Path(settings[1]) if settings else None,
        shards=shards,
        retired=retired,
        data=data,
        closed=closed,
        unproven=unproven,
    )


def _listens(node: Node) -> bool:
    """Return whether a program accepts connections there; raises TargetUnfit where unknown."""
    try:
        if node.host.startswith("/"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_CONNECT_S)
                probe.connect(f"{node.host}/.s.PGSQL.{node.port}")
        else:
            socket.create_connection((node.host, node.port), timeout=_CONNECT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError as error:
        raise TargetUnfit(
            node.name,
            "unreachable",
            f"cannot reach {node.host}:{node.port}: {error.strerror or error}",
            hint="check the node's host and port in the topology, and the network",
        ) from error
    return True


def _listener(node: Node) -> str | None:
    """Name the program there; None where its host does not report it."""
    try:
        return ports.listener(node.port, host_of(node))
    except ShardctlError as error:  # the checks of the host report it
        logger.debug("node %s: %s", node.name, error.message)
        return None


def _is_shards(topology: Topology, schema: str) -> bool:
    shard = topology.schema_pattern.shard(schema)
    return shard is not None and shard < topology.shard_count
