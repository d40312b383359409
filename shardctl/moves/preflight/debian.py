"""Debian's clusters: whether the Debian tools on the target's host would know the clone.

Debian keeps a cluster's configuration under /etc/postgresql, and its `pg_lsclusters`,
`pg_ctlcluster` and init scripts use it. They do not know a clone that was started without them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.moves.preflight import server, target
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context

_SECONDS = 30.0
_PROGRAMS = Path("/usr/lib/postgresql")
"""Where Debian's packages install PostgreSQL's programs."""
_LIST = "command -v pg_lsclusters >/dev/null || exit 0; echo here; exec pg_lsclusters --no-header"
_LINE = re.compile(r"(\S+)\s+(\S+)\s+\d+\s+\S+\s+\S+\s+(/.*)")
_CONF_ROOT = "PG_CLUSTER_CONF_ROOT="
_STARTED = re.compile(
    r"(?:\bpg_ctlcluster\s+(?:-\S+\s+)*|\bpostgresql@)"
    r"(\d+(?:\.\d+)?)[\s-]+([\w.-]+?)(?:\.service)?(?![\w.-])"
)
_PAGE = "docs/howto/real-hosts.md"


@dataclass(frozen=True, slots=True)
class Debian:
    """A host with Debian's tools; `cluster` is the one that owns the clone's data directory."""

    cluster: str | None
    """Its version and name, as `15 main`."""


def look(context: Context) -> Debian | None:
    """Ask the target's host for Debian's clusters; None where it has no such tools."""
    machine, argv = context.need(target.look), ["sh", "-c", _LIST]
    c = {"LC_ALL": "C"}
    said = machine.host.run(argv, user=machine.account, env=c, timeout=_SECONDS).stdout
    return read(said, context.target.data_directory)


def read(said: str, data_directory: Path | None) -> Debian | None:
    r"""Find the cluster of a data directory in what the host printed.

    >>> read("here\n15 main 5432 down postgres /srv/main /var/log/main.log", Path("/srv/main"))
    Debian(cluster='15 main')
    >>> read("here\n15 main 5432 down postgres /srv/main /var/log/main.log", Path("/srv/mai"))
    Debian(cluster=None)
    """
    first, *lines = said.splitlines() or [""]
    if first != "here":
        return None
    for line in lines:
        found = _LINE.match(line)
        if found is not None and f"{found[3]} ".startswith(f"{data_directory} "):
            return Debian(f"{found[1]} {found[2]}")
    return Debian(None)


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a clone that Debian's tools would not know, on a host that uses them."""
    node, debian, source = context.target, context.need(look), context.need(server.look)
    programs = context.of(target.programs)
    if debian is None:
        return
    if node.control is not None and node.control.start is not None:
        cluster = started(node.control.start)
        if cluster is not None and cluster != debian.cluster:
            yield TargetUnfit(
                node.name,
                "debian_other",
                f"control.start starts Debian's cluster {cluster}, but {node.data_directory} "
                + (f"belongs to {debian.cluster}" if debian.cluster else "belongs to no cluster"),
                hint="correct `control` or data_directory: run `pg_lsclusters` on its host",
            )
    elif debian.cluster is not None:
        yield TargetUnfit(
            node.name,
            "debian_cluster",
            f"{node.data_directory} belongs to Debian's cluster {debian.cluster}, but the node "
            "has no control.start: pg_ctlcluster would not know the clone",
            hint=f"give the node `{control(debian.cluster)}` ({_PAGE})",
        )
    elif (
        programs is not None
        and programs.directory.is_relative_to(_PROGRAMS)
        and _is_debians(source)
    ):
        cluster = f"{source.major} {node.data_directory.name if node.data_directory else 'NAME'}"
        yield TargetUnfit(
            node.name,
            "debian_unlisted",
            "its source is a Debian cluster (pg_createcluster), but the clone would not be one: "
            "pg_lsclusters would not list it, a reboot would not start it, and it would have no "
            "Unix socket",
            hint=f"run `pg_createcluster {cluster}` on its host, then set its data_directory and "
            f"`{control(cluster)}` in the topology ({_PAGE})",
        )


def started(command: str) -> str | None:
    """Return which Debian cluster a command starts; None where the command does not name one.

    >>> started("sudo -n pg_ctlcluster 15 main start"), started("pg_ctlcluster --foo 9.6-a start")
    ('15 main', '9.6 a')
    >>> started("sudo systemctl start postgresql@15-main.service"), started("start-it 15")
    ('15 main', None)

    `pg_lsclusters` does not list a cluster with a configuration directory of its own.

    >>> started("env PG_CLUSTER_CONF_ROOT=/srv/etc pg_ctlcluster 15 main start")
    """
    if _CONF_ROOT in command:
        return None
    found = _STARTED.search(command)
    return f"{found[1]} {found[2]}" if found is not None else None


def control(cluster: str) -> str:
    """Return the node's `control` for a Debian cluster, given as `15 main`."""
    verbs = {"start": "start", "stop": "stop -m fast", "status": "status"}
    said = [f"{verb}: sudo -n pg_ctlcluster {cluster} {words}" for verb, words in verbs.items()]
    return f"control: {{{', '.join(said)}}}"


def _is_debians(source: Server) -> bool:
    """Return whether a server's configuration is outside its data directory, as Debian has it."""
    config, data = source.settings.get("config_file"), source.settings.get("data_directory")
    return config is not None and data is not None and not config.startswith(f"{data}/")
