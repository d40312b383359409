"""PgBouncer's files as text: the aliases that shardctl owns, a sandbox's, and what it reads."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.ids.generator import quote_identifier
from shardctl.topology import aliases

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import jinja2

    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology

_PLAIN = re.compile(r"[A-Za-z0-9_.:/-]+")
_LINE_ENDS = re.compile(r"[\0\r\n]")
_CHECKSUM = re.compile(r"^; checksum: ([0-9a-f]*)$", re.MULTILINE)
_CLUSTER = re.compile(r"^; cluster: (.+)$", re.MULTILINE)
_VERSION = re.compile(r"^; map version: ([0-9]+)$", re.MULTILINE)
_HEADER_LINES = 8

SANDBOX = "`shardctl sandbox up` wrote this file"
"""What all files have that belong to the sandbox."""
OWN_SETTINGS = (
    "; Your own settings of this pooler: `shardctl sandbox up` does not change this file.\n"
)

_BLANKS = " \t\n\v\f\r"  # C's, not Unicode's
_SECTION = re.compile(r"\[([^\]]*)\]")
_PAIR = re.compile(r"([^= ]+)[ \t]*=[ \t]*(?:'((?:[^']|'')*)'|([^ ]*))")
_KEY = re.compile(r"(?:'([^']+)'|([A-Za-z0-9_.*-]+))[ \t]*=[ \t]*(.*)", re.DOTALL)


def value_refused(value: str, why: str) -> Refused:
    """Report a value that PgBouncer's file cannot hold without becoming something else."""
    return Refused(
        "value_refused",
        f"PgBouncer's configuration cannot contain {value!r}: {why}",
        hint="choose another name in the topology",
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
    if "node" in pooler.aliases:
        for node in topology.nodes.values():
            alias = aliases.of_node(topology.database.name, node.name)
            found.append(
                Entry(
                    alias, node.name, node.shards, node.pooler_host, node.port,
                    topology.database.name, None,
                )
            )  # fmt: skip
    if "shard" in pooler.aliases:
        owners = topology.owners()
        for shard in sorted(owners):
            node = topology.nodes[owners[shard]]
            alias = topology.schema(shard)
            found.append(
                Entry(
                    alias, node.name, (shard,), node.pooler_host, node.port,
                    topology.database.name, f"SET search_path TO {quote_identifier(alias)}",
                )
            )  # fmt: skip
    return found


def databases(topology: Topology, pooler: Pooler, map_version: int) -> str:
    """Write the file of a pooler's aliases; raises value_refused.

    The same values give the same text, to the byte.
    """
    text = _rendered(
        "databases.ini.j2",
        checksum="",
        pooler=pooler.name,
        cluster=topology.cluster,
        map_version=map_version,
        entries=entries(topology, pooler),
    )
    return _seal(text, _digest(text))


def configuration(
    topology: Topology,
    pooler: Pooler,
    *,
    auth_file: Path,
    log_file: Path,
    pid_file: Path,
    own_file: Path,
    hba_file: Path | None = None,
) -> str:
    """Write the whole pgbouncer.ini of a pooler of this machine; raises value_refused.

    Without `hba_file` it trusts everybody.
    """
    return _rendered(
        "pgbouncer.ini.j2",
        pooler=pooler.name,
        cluster=topology.cluster,
        host=pooler.host,
        port=pooler.port,
        auth_file=auth_file,
        hba_file=hba_file,
        admin_user=pooler.admin_user,
        log_file=log_file,
        pid_file=pid_file,
        own_file=own_file,
        databases_file=pooler.databases_file,
    )


def access(names: Collection[str]) -> str:
    """Write the file by which these users need a password, and all others none."""
    listed = ",".join(quote_identifier(_one_line(name)) for name in names)
    rules = ((listed, "scram-sha-256"), ("all", "trust"))
    lines = [
        f"host all {who} {where} {how}\n" for who, how in rules for where in ("0.0.0.0/0", "::/0")
    ]
    return f"# {SANDBOX}.\n" + "".join(lines)


def users(names: Sequence[str], passwords: Mapping[str, str]) -> str:
    """Write the file of users, and the passwords of those who need one."""
    return f"; {SANDBOX}.\n" + "".join(
        f'{quote_identifier(_one_line(name))} "{passwords.get(name, "")}"\n' for name in names
    )


def header(text: str) -> Header | None:
    """Read the head of a file of aliases; None where shardctl did not write it."""
    head = "\n".join(text.split("\n", _HEADER_LINES)[:_HEADER_LINES])
    cluster, version, checksum = (e.search(head) for e in (_CLUSTER, _VERSION, _CHECKSUM))
    if cluster is None or version is None or checksum is None:
        return None
    return Header(cluster[1], int(version[1]), edited=is_edited(text))


def is_newer(found: str | None, text: str) -> bool:
    """Return whether a file that was found on a host is of a newer map than a text for it."""
    there, here = header(found or ""), header(text)
    return there is not None and here is not None and there.map_version > here.map_version


def is_edited(text: str) -> bool:
    """Return whether a text is not what shardctl wrote, by its checksum."""
    found = _CHECKSUM.search(text)
    return found is None or found[1] != _digest(_seal(text, ""))


def _rendered(template: str, **values: object) -> str:
    return _environment().get_template(template).render(**values)


def _seal(text: str, checksum: str) -> str:
    return _CHECKSUM.sub(f"; checksum: {checksum}", text, count=1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # noqa: PLC0415  # only what renders needs it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("shardctl"),
        autoescape=False,  # noqa: S701  # no HTML; each value passes one of the filters below
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=_one_line,
    )
    environment.filters |= {"value": _value, "whole": _whole, "user": _user}
    return environment


def _one_line(value: object) -> str:
    """Refuse what would end the line."""
    text = str(value)
    if _LINE_ENDS.search(text):
        raise value_refused(text, "it has a line break or a zero byte")
    return text


def _value(value: object) -> str:
    """Quote one value of a connection string.

    >>> print(_value("app"), _value("it's"))
    app 'it''s'
    """
    text = _one_line(value)
    if not text:
        raise value_refused(text, "it is empty")
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "''") + "'"


def _whole(value: object) -> str:
    """Pass a value that reaches to the end of its line, where blanks at its ends would be lost."""
    text = _one_line(value)
    if text != text.strip() or not text:
        raise value_refused(text, "it is empty, or begins or ends with a space")
    return text


def _user(value: object) -> str:
    """Pass one name of a list of users, which has no quotes."""
    text = _whole(value)
    if re.search(r"[\s,]", text):
        raise value_refused(text, "a list would read it as two names")
    return text


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a section: a parameter, a database or a user."""

    section: str
    key: str
    value: str


def read_ini(text: str) -> Iterator[Setting]:
    r"""Read a file's text; what is malformed is left out.

    >>> [item.key for item in read_ini("[databases]\nx = host=a\n; y =\n[pgbouncer]\nz=1")]
    ['x', 'z']
    """
    section = ""
    for line in text.split("\n"):
        rest = line.strip(_BLANKS)
        while found := _SECTION.match(rest):
            section = found[1]
            rest = rest[found.end() :].lstrip(_BLANKS)
        if key := _KEY.fullmatch(rest):
            yield Setting(section, key[1] or key[2], key[3])


def pairs(value: str) -> dict[str, str]:
    """Take a database's connection string apart.

    >>> pairs("host=a port=1 connect_query='SET x TO ''y z'''")
    {'host': 'a', 'port': '1', 'connect_query': "SET x TO 'y z'"}
    """
    found = _PAIR.finditer(value)
    return {m[1]: m[3] if m[2] is None else m[2].replace("''", "'") for m in found}
