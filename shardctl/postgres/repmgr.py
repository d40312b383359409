"""What repmgr has written into the databases of a server: its cluster, and whether it fails over.

repmgr keeps the members of its cluster in the tables of an extension, in a database of the
operator's choice. A clone has them, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from psycopg.conninfo import conninfo_to_dict

from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Database, Node

Daemon = Literal["paused", "runs", "none"]
"""What repmgrd does at a standby; `none` where it does not run."""

_QUERIES = queries.load("shardctl.postgres", "repmgr.sql")
_TOLD = ("host", "hostaddr", "port", "user", "dbname")


@dataclass(frozen=True, slots=True)
class Member:
    """A server that repmgr knows; `login` is its conninfo, without any secret."""

    id: int
    name: str
    kind: str
    active: bool
    login: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Repmgr:
    """A cluster of repmgr, as one of its servers has it in `database`."""

    database: str
    members: tuple[Member, ...]
    may_leave: bool
    """Whether shardctl's role may read the members, and delete them of a clone."""

    @property
    def standbys(self) -> tuple[Member, ...]:
        """The members that could be promoted."""
        return tuple(m for m in self.members if m.kind == "standby" and m.active)


def look(node: Node, database: Database, session: Connection, *, purpose: str) -> Repmgr | None:
    """Find repmgr's tables in any of a server's databases; None where there are none.

    `session` is with the server. A database that cannot be logged in to counts as having none.
    """
    if session.execute(_QUERIES["available"]).fetchone() is None:
        return None
    with _tables(node, database, session, purpose) as found:
        if found is None:
            return None
        if found.execute(_QUERIES["may_leave"]).fetchone() != (True,):
            return Repmgr(found.info.dbname, (), may_leave=False)
        rows = found.execute(_QUERIES["nodes"]).fetchall()
        return Repmgr(
            found.info.dbname,
            tuple(Member(i, name, kind, on, _login(text)) for i, name, kind, on, text in rows),
            may_leave=True,
        )


def daemon(
    member: Member, known: Repmgr, node: Node, database: Database, *, purpose: str
) -> Daemon:
    """Ask a standby what its repmgrd does; `node` is the primary. Raises NodeUnavailable."""
    there = replace(
        node,
        name=NodeName(member.name),
        host=member.login.get("host", member.login.get("hostaddr", node.host)),
        port=int(member.login.get("port", node.port)),
    )
    with connect(there, database, purpose=purpose, dbname=known.database) as session:
        row = session.execute(_QUERIES["daemon"]).fetchone()
    runs, paused = row or (None, None)
    if paused:  # which it also receives when it starts
        return "paused"
    return "runs" if runs else "none"


def leave(node: Node, database: Database, session: Connection, *, purpose: str) -> str | None:
    """Let a promoted clone forget its source's cluster; repeatable.

    `session` is with the clone, in autocommit. Gives the database in which there was something
    to forget. What repmgr is made of stays: the node can be registered in a cluster of its own.
    Its host may lack repmgr.
    """
    with _tables(node, database, session, purpose) as found:
        row = found.execute(_QUERIES["leave"]).fetchone() if found is not None else None
        return found.info.dbname if found is not None and row is not None and row[0] else None


@contextmanager
def _tables(
    node: Node, database: Database, session: Connection, purpose: str
) -> Iterator[Connection | None]:
    """Give a session in the database that has repmgr's tables, or None."""
    if session.execute(_QUERIES["here"]).fetchone() is not None:
        yield session
    else:
        yield from _elsewhere(node, database, session, purpose)


def _elsewhere(
    node: Node, database: Database, session: Connection, purpose: str
) -> Iterator[Connection | None]:
    for (name,) in session.execute(_QUERIES["databases"]).fetchall():
        try:
            other = connect(node, database, purpose=purpose, dbname=name, autocommit=True)
        except NodeUnavailable:
            continue  # preflight refuses such a database by itself
        with other:
            if other.execute(_QUERIES["here"]).fetchone() is not None:
                yield other
                return
    yield None


def _login(conninfo: str) -> dict[str, str]:
    """Keep the address of a member; its conninfo may have a password."""
    keywords = conninfo_to_dict(conninfo)
    return {name: str(keywords[name]) for name in _TOLD if keywords.get(name)}
