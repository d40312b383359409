"""PgBouncer's files as text: the aliases that shardctl owns, a sandbox's, and what it reads."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.ids.generator import quote_identifier
from shardctl.topology.names import of_node

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology

_PLAIN = re.compile(r"[A-Za-z0-9_.:/-]+")
_LINE_ENDS = re.compile(r"[\0\r\n]")
_CHECKSUM = re.compile(r"^; checksum: ([0-9a-f]*)$", re.MULTILINE)
_HEADER = re.compile(
    r"^; cluster: (.+)\n; map version: ([0-9]+)\n; checksum: [0-9a-f]*$", re.MULTILINE
)

USERS, HBA, OWN = "users.txt", "hba.conf", ".own.ini"
"""Other files of a sandbox's pooler: who may log in, by what rules, and the user's own settings."""
SANDBOX = "`shardctl sandbox up` wrote this file"
"""What all files have that belong to the sandbox."""
OWN_SETTINGS = (
    "; Your own settings of this pooler: `shardctl sandbox up` does not change this file.\n"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One alias and where it leads; `shards` are all that can be reached through it."""

    alias: str
    node: NodeName
    shards: tuple[ShardId, ...]
    host: str
    port: int
    dbname: str
    connect_query: str | None


@dataclass(frozen=True, slots=True)
class Header:
    """The head of a file; `edited` when the text is not what shardctl wrote."""

    cluster: str
    map_version: int
    edited: bool


def entries(topology: Topology, pooler: Pooler) -> list[Entry]:
    """List what a pooler should offer: an alias a node, then an alias a shard, as configured.

    Nodes without shards have theirs, too, so that no client's alias comes or goes with a move.
    """
    found: list[Entry] = []
    database = topology.database.name
    if "node" in pooler.aliases:
        for node in topology.nodes.values():
            alias, at = of_node(database, node.name), (node.pooler_host, node.port)
            found.append(Entry(alias, node.name, node.shards, *at, database, None))
    if "shard" in pooler.aliases:
        for shard, owner in sorted(topology.owners().items()):
            alias, node = topology.schema(shard), topology.nodes[owner]
            query = f"SET search_path TO {quote_identifier(alias)}"
            at = node.pooler_host, node.port
            found.append(Entry(alias, owner, (shard,), *at, database, query))
    return found


def databases(topology: Topology, pooler: Pooler, map_version: int) -> str:
    """Write the file of a pooler's aliases; raises value_refused.

    The same values give the same text, to the byte.
    """
    cluster = _one_line(topology.cluster)
    text = f"""\
; Aliases of the shards of cluster {cluster}, for pooler {_one_line(pooler.name)}.
; `shardctl pgbouncer apply` writes this file: what is changed by hand is found and not overwritten.
; cluster: {cluster}
; map version: {map_version}
; checksum: {""}

[databases]
"""
    for one in entries(topology, pooler):
        to = f"host={_value(one.host)} port={one.port} dbname={_value(one.dbname)}"
        query = f" connect_query={_value(one.connect_query)}" if one.connect_query else ""
        text += f"{_one_line(one.alias)} = {to}{query}\n"
    return _seal(text, _digest(text))


def configuration(topology: Topology, pooler: Pooler, *, secret: bool) -> str:
    """Write the whole pgbouncer.ini of a pooler of this machine; raises value_refused.

    Without `secret` it trusts everybody.
    """
    cluster, user = _one_line(topology.cluster), _one_line(pooler.admin_user)
    folder, base = _one_line(pooler.config.parent), _one_line(pooler.config.with_suffix(""))
    by = f"hba\nauth_hba_file = {folder}/{HBA}" if secret else "trust"
    return f"""\
; Pooler {_one_line(pooler.name)} of cluster {cluster}, on this machine only.
; {SANDBOX}, and rewrites it: put your own settings into
; {base}{OWN}, which wins.

[pgbouncer]
listen_addr = {_one_line(pooler.host)}
listen_port = {pooler.port}
unix_socket_dir =
auth_type = {by}
auth_file = {folder}/{USERS}
admin_users = {user}
pool_mode = transaction
max_client_conn = 1000
; JDBC sends this parameter, which PgBouncer does not support.
ignore_startup_parameters = extra_float_digits
; After one login that failed, or that a pause cut short, clients wait so long (15 s by default).
server_login_retry = 1
logfile = {base}.log
pidfile = {base}.pid

%include {base}{OWN}
%include {_one_line(pooler.databases_file)}
"""


def access(names: Collection[str]) -> str:
    """Write the rules by which these users and replication need a password, and others none.

    They are for a server, and for a pooler, which reads the same format.
    """
    listed = ",".join(quote_identifier(_one_line(name)) for name in names)
    everywhere = ("local {}", "host {} 0.0.0.0/0", "host {} ::/0")
    rules = (
        (f"all {listed}", "scram-sha-256"),
        ("replication all", "scram-sha-256"),
        ("all all", "trust"),
    )
    lines = [f"{way.format(who)} {how}\n" for who, how in rules for way in everywhere]
    return f"# {SANDBOX}.\n" + "".join(lines)


def users(names: Sequence[str], passwords: Mapping[str, str]) -> str:
    """Write the file of users, and the passwords of those who need one."""
    return f"; {SANDBOX}.\n" + "".join(
        f'{quote_identifier(_one_line(name))} "{passwords.get(name, "")}"\n' for name in names
    )


def header(text: str) -> Header | None:
    """Read the head of a file of aliases; None where shardctl did not write it."""
    found = _HEADER.search(text)
    return found and Header(found[1], int(found[2]), edited=is_edited(text))


def is_newer(found: str | None, text: str) -> bool:
    """Return whether a file that was found on a host is of a newer map than a text for it."""
    there, here = header(found or ""), header(text)
    return there is not None and here is not None and there.map_version > here.map_version


def is_edited(text: str) -> bool:
    """Return whether a text is not what shardctl wrote, by its checksum."""
    found = _CHECKSUM.search(text)
    return found is None or found[1] != _digest(_seal(text, ""))


def _seal(text: str, checksum: str) -> str:
    return _CHECKSUM.sub(f"; checksum: {checksum}", text, count=1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _one_line(value: object) -> str:
    """Refuse what would end the line; raises value_refused."""
    text = str(value)
    if _LINE_ENDS.search(text):
        raise Refused(
            "value_refused",
            f"PgBouncer's configuration cannot contain {text!r}: it has a line end or a zero byte",
            hint="choose another name in the topology",
        )
    return text


def _value(value: object) -> str:
    """Quote one value of a connection string.

    >>> print(_value("app"), _value("it's"))
    app 'it''s'
    """
    text = _one_line(value)
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "''") + "'"
