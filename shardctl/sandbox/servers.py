"""Starts, stops and checks the local servers of a topology."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from psycopg import sql

from shardctl import fanout
from shardctl.errors import Incomplete, Problems, Refused, ShardctlError, named
from shardctl.hosts import accounts, ports
from shardctl.hosts.local import Local
from shardctl.postgres import binaries, connection, hosted
from shardctl.postgres import clone as clones
from shardctl.sandbox import local
from shardctl.sandbox.local import LocalServer
from shardctl.topology import build

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shardctl.fanout import Progress
    from shardctl.postgres.hosted import Started
    from shardctl.sandbox.local import Foreseen
    from shardctl.topology.model import Node, NodeName, Pooler, Topology

WIDTH = 8
"""How many servers to start or stop at the same time."""

_PURPOSE = "shardctl sandbox"
_STREAMS = {"wal_level": "logical", "max_replication_slots": "32"}
"""Of every server of a sandbox, unless its node says otherwise: shards can be streamed from it.

Each move to it that can be reversed keeps a slot there, without a WAL sender or a worker.
"""

_MARKER = """\
Created by `shardctl sandbox up` for node {node} of cluster {cluster}.
`shardctl sandbox down --delete` removes directories with this file."""
_PRIVATELY = """
umask 077
set -C
cat >"$1.$$" && ln -- "$1.$$" "$1" 2>/dev/null
rm -f -- "$1.$$"
[ -s "$1" ]
"""
"""Writes a file that only its user reads, unless another `up` has written it."""

Value = TypeVar("Value")
Server = TypeVar("Server", bound="Node | Pooler")


@dataclass(frozen=True, slots=True)
class Up:
    """A server that runs after `up`; `made` is whether its data directory is new."""

    node: Node
    did: Started
    made: bool
    waiting: tuple[str, ...]
    """Settings that need a restart, or that the server refuses."""


@dataclass(frozen=True, slots=True)
class Down:
    """What is down; `deleted` and `left` (a path, with the reason) after `--delete`."""

    server: Node | Pooler
    was_up: bool
    deleted: tuple[Path, ...]
    left: tuple[Path, str] | None


@dataclass(frozen=True, slots=True)
class State:
    """The state of a node; `pid` and `port` are the running server's."""

    node: Node
    state: Literal["up", "starting", "stopping", "down", "absent"]
    major: str | None
    pid: int | None
    port: int | None
    ours: bool
    """Whether `sandbox up` created the data directory, so that `down --delete` removes it."""


def not_local(node: NodeName, reason: str) -> Refused:
    """Report a node on another machine, which the sandbox does not manage."""
    return Refused(
        "not_local",
        f"node {node}: {reason}, but the sandbox manages only servers on this machine",
        hint="use a topology with local servers: run `shardctl sandbox new` to write one",
    )


def no_data_directory(node: NodeName) -> Refused:
    """Report a node with shards that has no data directory."""
    return Refused(
        "no_data_directory",
        f"node {node} has no data_directory",
        hint=f"add data_directory to the node in the topology, for example .sandbox/{node}",
    )


def foresee(topology: Topology) -> list[tuple[Node, Foreseen]]:
    """Return what `up` would do with each node; changes nothing. Raises Problems."""
    require_local(topology)

    def foreseen(node: Node) -> tuple[Node, Foreseen]:
        if _is_clone(node):
            return node, "up" if status_of(node).pid is not None else "start"
        return node, _server(node).foresee()

    return each(_serving(topology), "node", foreseen)


def protected(topology: Topology) -> Topology:
    """Give the topology with the passfile of its sandbox, which is made where it is missing.

    Without it nobody logs in as the superuser, who can run programs as the servers' user.
    Raises Problems, directory_refused, folder_unsafe.
    """
    require_local(topology)
    path = build.sandbox_passfile(topology.nodes.values())
    if path is None or "passfile" in topology.database.options:
        return topology
    account = accounts.server_account(None)
    accounts.own(path.parent, account)
    password = secrets.token_urlsafe(24)
    # initdb takes the first line, and libpq the second.
    text = f"{password}\n*:*:*:*:{password}\n"
    Local().run(["sh", "-c", _PRIVATELY, "sh", str(path)], user=account, input=text)
    given = {"passfile": str(path)}
    database = replace(
        topology.database,
        options={**topology.database.options, **given},
        subscription_options={**given, **topology.database.subscription_options},
    )
    return replace(topology, database=database)


def up(topology: Topology, progress: Progress) -> list[Up]:
    """Start a server for every node that owns shards, and create what it needs.

    Other nodes that have data are started, too: members, and the target of an open move. Raises
    Problems without starting any if a node is not local or has no data directory; also Problems for
    servers that did not start: running ones keep running, and a second call starts the rest.
    """
    require_local(topology)

    def start(node: Node) -> Up:
        progress.expect(node.name, "starting", 2)
        if _is_clone(node):
            # Its move has written its settings, and keeps everybody else out.
            clone = hosted.find(node, _directory(node)).start()
            progress.advance(node.name, 2)
            return Up(node, clone, False, ())
        server = _server(node)
        made = server.init(
            superuser=topology.database.user,
            marker=_MARKER.format(node=node.name, cluster=topology.cluster),
            passfile=build.known_passfile(topology),
            secret=sorted({topology.database.user, topology.database.replication_user}),
        )
        progress.advance(node.name)
        did = server.start()
        waiting = _finish(node, topology, reloaded=did == "reloaded")
        progress.advance(node.name)
        return Up(node, did, made, waiting)

    return each(_serving(topology), "node", start, begun="started")


def down(topology: Topology, progress: Progress, *, delete: bool) -> list[Down]:
    """Stop every node's server, spare ones too; `delete` removes what `up` created.

    Skips nodes that are not local or have no data directory. Raises Problems.
    """

    def stop(node: Node) -> Down:
        progress.expect(node.name, "stopping", 1)
        found = status_of(node)
        if found.pid is not None:
            _server(node).stop()
        account = accounts.server_account(node.os_user) if delete else None
        deleted, left = local.remove(_directory(node), account) if delete else ((), None)
        progress.advance(node.name)
        return Down(node, found.pid is not None, deleted, left)

    found = each(_local(topology), "node", stop, begun="stopped")
    if delete:
        for parent in {_directory(node).parent for node in _local(topology)}:
            _remove_parent(parent)
    return found


def status(topology: Topology) -> list[State]:
    """Return the state of every local node that has a data directory; raises Problems."""
    return each(_local(topology), "node", status_of)


def status_of(node: Node) -> State:
    """Return the state of one local node with a data directory."""
    seen = local.look(_directory(node))
    if (found := seen.server) is None:
        return State(node, "down" if seen.major else "absent", seen.major, None, None, seen.ours)
    waits: Literal["stopping", "starting"] = (
        "stopping" if found.status == "stopping" else "starting"
    )
    return State(node, "up" if found.ready else waits, seen.major, found.pid, found.port, seen.ours)


def require_local(topology: Topology, *, managed: bool = True) -> None:
    """Raise Problems unless all nodes are here and, if `managed`, `up` can serve them."""
    errors: list[ShardctlError] = []
    for node in topology.nodes.values():
        if not ports.is_loopback(node.host):
            errors.append(not_local(node.name, f"host {node.host} is not a loopback address"))
        elif managed and node.ssh is not None:
            errors.append(not_local(node.name, "shardctl reaches it over ssh"))
        elif managed and node.shards and node.data_directory is None:
            errors.append(no_data_directory(node.name))
    if errors:
        raise Problems(errors)


def _local(topology: Topology) -> list[Node]:
    """Return the nodes whose servers the sandbox may have started."""
    return [
        node
        for node in topology.nodes.values()
        if ports.is_loopback(node.host) and node.ssh is None and node.data_directory is not None
    ]


def _serving(topology: Topology) -> list[Node]:
    """Return the nodes that own shards, and those whose data is made."""
    here = _local(topology)
    return [
        node
        for node in topology.nodes.values()
        if node.shards or (node in here and local.look(_directory(node)).major is not None)
    ]


def _is_clone(node: Node) -> bool:
    """Return whether a node's data is the clone of a move that has not ended."""
    return (_directory(node) / clones.MARK).is_dir()


def _directory(node: Node) -> Path:
    if node.data_directory is None:
        raise no_data_directory(node.name)
    return node.data_directory


def _server(node: Node) -> LocalServer:
    """Return the object that controls the node's server here."""
    account = accounts.server_account(node.os_user)
    programs = binaries.find(node.bin_directory, account=account)
    own = replace(node, settings=_STREAMS | dict(node.settings), control=None)
    return LocalServer(own, _directory(node), programs, account)


def _remove_parent(parent: Path) -> None:
    """Remove the directory of all data directories after the last of them, and the password."""
    with contextlib.suppress(OSError):  # something else is in it, or it is gone
        if [entry.name for entry in parent.iterdir()] == [build.PASSFILE]:
            (parent / build.PASSFILE).unlink()
        if parent.name.startswith((".sandbox", "shardctl-sandbox-")):
            parent.rmdir()


def _finish(node: Node, topology: Topology, *, reloaded: bool) -> tuple[str, ...]:
    """Create the replication user; return the changed settings that need a restart."""
    database, name = topology.database, topology.database.replication_user
    if name == database.user and not reloaded:
        return ()
    with connection.connect(
        node, database, purpose=_PURPOSE, dbname="postgres", autocommit=True
    ) as session:
        there = session.execute(
            "SELECT FROM pg_roles WHERE rolname = %s UNION ALL SELECT WHERE pg_is_in_recovery()",
            [name],
        ).fetchone()
        if there is None:
            statement = sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(sql.Identifier(name))
            if (password := build.sandbox_password(topology)) is not None:
                verifier = session.pgconn.encrypt_password(
                    password.encode(), name.encode(), b"scram-sha-256"
                )
                statement += sql.SQL(" PASSWORD {}").format(sql.Literal(verifier.decode()))
            session.execute(statement)
        rows = session.execute(
            "SELECT DISTINCT name FROM pg_file_settings WHERE error IS NOT NULL ORDER BY name"
        )
        return tuple(row[0] for row in rows)


def each(
    servers: Sequence[Server],
    kind: str,
    work: Callable[[Server], Value],
    *,
    begun: str | None = None,
    before: Sequence[str] = (),
) -> list[Value]:
    """Call `work` for nodes or poolers in parallel; return all values, or raise Problems by name.

    `begun` is the verb for those that succeeded, and for what succeeded `before`; None if nothing
    is changed.
    """
    found = fanout.collect(servers, work, width=WIDTH)
    errors = [named(f"{kind} {one.name}", error) for one, error in found.problems]
    done = [*before, *(one.name for one, _ in found.values)]
    if errors and done and begun is not None:
        failed = ", ".join(one.name for one, _ in found.problems)
        errors.append(
            Incomplete(
                "some_failed",
                f"{', '.join(done)} {begun}; {failed} did not",
                hint="fix the errors above, then run the same command again: it does only the rest",
            )
        )
    if errors:
        raise Problems(errors)
    return found.every()
