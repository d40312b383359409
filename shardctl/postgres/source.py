"""The node that is cloned: the logins it must accept, what it must not have, its size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts.host import CommandFailed, CommandTimedOut
from shardctl.libpq import conninfo, from_target
from shardctl.postgres import clone as clones
from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.postgres.clone import Clone
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Database, Node

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_LOGIN_S = 30.0


def replication_refused(source: Source, target: str, reason: str) -> Refused:
    """Report a source that rejects the replication user from the target's host."""
    return Refused(
        "replication_refused",
        f"node {source.node.name} rejects replication by "
        f"{source.database.replication_user} from the host of node {target}: {reason}",
        hint=_remedy(source, reason),
    )


@dataclass(frozen=True, slots=True)
class Source:
    """The node that is cloned, and how the target's host logs in to it."""

    node: Node
    database: Database

    def conninfo(self, name: str, **more: str | int) -> str:
        """Write libpq's connection string for `name`, without a password.

        The password comes from a passfile there: ~/.pgpass, or that of
        `database.subscription_options`.
        """
        user = self.database.replication_user
        given = {"application_name": name, **more}
        return conninfo(self.node, from_target(self.database), user=user, **given)


def require_replication(clone: Clone, source: Source, session: Connection) -> None:
    """Log in from the target's host as the copy will; `session` is with the source.

    Raises replication_refused, source_elsewhere.
    """
    login = source.conninfo(clone.slot, replication="true")
    argv = [clone.server.binaries.program("psql"), "-X", "-w", "-q", "-A", "-t"]
    target = clone.server.name
    try:
        answer = clones.attempt(
            clone, [*argv, "-d", login, "-c", "IDENTIFY_SYSTEM"], timeout=_LOGIN_S
        )
    except CommandFailed as error:
        lines = [line for line in error.completed.stderr.splitlines() if line.strip()]
        reason = lines[0].rpartition("FATAL: ")[2].strip() if lines else "no output from psql"
        raise replication_refused(source, target, reason) from error
    except CommandTimedOut as error:
        raise replication_refused(
            source, target, f"no response within {error.seconds:g} s"
        ) from error
    row = session.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    if row is not None and answer.partition("|")[0] != row[0]:
        node = source.node
        raise Refused(
            "source_elsewhere",
            f"on the host of node {target}, {node.host}:{node.port} leads to another "
            f"server than node {node.name}",
            hint=f"set the host of node {node.name} to a name or address that is valid on "
            "every host",
        )


def require_no_tablespaces(source: Source, session: Connection) -> None:
    """Raise tablespaces_refused where the source has any."""
    found = [name for (name,) in session.execute(_QUERIES["tablespaces"])]
    if found:
        raise Refused(
            "tablespaces_refused",
            f"node {source.node.name} has tablespaces, which cannot be cloned: {', '.join(found)}",
            hint="move their tables to pg_default (ALTER TABLE ... SET TABLESPACE), then drop them",
        )


def _remedy(source: Source, reason: str) -> str:
    """Describe what to add; the texts of libpq and the server are all there is to go by."""
    user, node = source.database.replication_user, source.node.name
    if "pg_hba.conf" in reason:
        host = re.search(r'from host "([^"]+)"', reason)
        address = host[1] if host else "ADDRESS-OF-THAT-HOST"
        return (
            f"add to pg_hba.conf of node {node}, then reload: host replication {user} "
            f"{address} scram-sha-256"
        )
    if "password" in reason:
        return (
            f"add the password of {user} for the database `replication` to ~/.pgpass "
            "(mode 0600) of the user who runs the server on the target's host"
        )
    if "role to start" in reason or "permission denied" in reason:
        return (
            f"cloning needs a replication login: run on node {node}: ALTER ROLE {user} "
            "REPLICATION LOGIN"
        )
    if "does not exist" in reason:
        return (
            f"cloning needs a replication login: run on node {node}: CREATE ROLE {user} "
            "REPLICATION LOGIN"
        )
    return f"check the connection from that host to {source.node.host}:{source.node.port}"
