"""Copy a node by `repmgr standby clone`, for fleets whose standbys are made with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from shardctl.errors import Refused, ShardctlError
from shardctl.postgres import repmgr
from shardctl.postgres.copier import Copier, Program

if TYPE_CHECKING:
    from shardctl.postgres.clone import Clone
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.repmgr import Member, Repmgr
    from shardctl.postgres.source import Source

CONFIGURATION = "repmgr.conf"
"""What repmgr reads, beside the copy; it goes when the copy has taken its place."""

_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,-]+")


class RepmgrUnfit(ShardctlError):
    """A value that repmgr would give to a shell without quoting it."""

    def __init__(self, node: str, what: str, value: str) -> None:
        self.reason = (
            f"repmgr cannot use {what} {value!r}: it passes the value to a shell, unquoted"
        )
        super().__init__(
            f"node {node}: {self.reason}",
            hint="use only letters, digits and _ . / : = @ % + , - there, or set `move: "
            "{clone_with: basebackup}` in the topology",
        )
        self.what = what
        self.value = value


def program(clone: Clone, source: Source, session: Connection, max_rate: str | None) -> Program:
    """Give the command and its configuration; raises repmgr_absent and RepmgrUnfit."""
    known = repmgr.look(source.node, source.database, session, purpose=clone.slot)
    argv, configuration = of_cluster(clone, source, known, max_rate)
    argv += ["-f", str(clone.work / CONFIGURATION)]
    return Program(argv, {CONFIGURATION: configuration})


def of_cluster(
    clone: Clone, source: Source, known: Repmgr | None, max_rate: str | None
) -> tuple[list[str], str]:
    """Give the command without its `-f FILE`, and what that file holds.

    `known` is the cluster in which the source should be. Raises repmgr_absent and RepmgrUnfit.
    """
    if known is None or (primary := known.primary) is None:
        raise Refused(
            "repmgr_absent",
            f"node {source.node.name} is not registered with repmgr as a primary, so "
            "`repmgr standby clone` cannot clone it",
            hint="run `repmgr primary register` on it, or set `move: {clone_with: "
            "basebackup}` in the topology",
        )
    # As repmgr logs in there: it reads its tables, and writes an event.
    conninfo = source.conninfo(clone.slot, dbname=known.database, **_role(primary))
    user = source.database.replication_user
    _require_plain(clone, conninfo, user)
    argv = [clone.server.binaries.program("repmgr"), "-d", conninfo, "--replication-user", user]
    argv += ["standby", "clone", "--fast-checkpoint"]
    return argv, _configuration(clone, known, primary, max_rate)


def _configuration(clone: Clone, known: Repmgr, primary: Member, max_rate: str | None) -> str:
    """Compose a repmgr.conf for a node that will never be registered."""
    server = clone.server
    login = {"dbname": known.database, **_role(primary)}
    options = [f"--slot={clone.slot}", "--progress", "--no-manifest", "--no-password"]
    options += [f"--max-rate={max_rate}"] if max_rate else []
    values = {
        "node_id": known.free_id,
        "node_name": clone.slot,
        "conninfo": make_conninfo("", host=server.host, port=server.port, **login),
        "data_directory": clone.copy,
        "pg_bindir": server.binaries.directory,
        "pg_basebackup_options": " ".join(options),
        # The slot is the move's own, and made already.
        "use_replication_slots": "no",
    }
    return "".join(f"{name}='{value}'\n" for name, value in values.items())


def _role(primary: Member) -> dict[str, str]:
    return {"user": primary.login["user"]} if "user" in primary.login else {}


def _require_plain(clone: Clone, conninfo: str, user: str) -> None:
    """Refuse what would need quotes: repmgr composes a line for a shell and sets none."""
    server = clone.server
    given = {
        "the data directory": str(clone.copy),
        "the bin_directory": str(server.binaries.directory),
        "the host": server.host,
        "the replication user": user,
        **{name: str(value) for name, value in conninfo_to_dict(conninfo).items()},
    }
    for what, value in given.items():
        if _PLAIN.fullmatch(value) is None:
            raise RepmgrUnfit(server.name, what, value)


COPIER = Copier("repmgr", program)
