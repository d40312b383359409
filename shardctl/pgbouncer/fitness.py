"""Whether a pooler can be changed at all: its admin, its configuration, what it includes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts import files
from shardctl.pgbouncer import faults, ini, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.hosts.host import Host
    from shardctl.topology.model import Pooler, Topology

_DEPTH = 10  # of includes, as PgBouncer has it
_RELATIVE = (
    "PgBouncer resolves a relative path from the directory where it was started: write the "
    "absolute path"
)


def require(
    topology: Topology, pooler: Pooler, host: Host, *, place: str, config: Mapping[str, str]
) -> frozenset[str]:
    """Refuse a pooler whose aliases shardctl could not change, or that could not serve them.

    `place` is the file of aliases without links, `config` the rows of SHOW CONFIG. Gives the
    databases that the operator has beside. Raises not_pooler_admin, PoolingUnfit, OtherConfig,
    NotIncluded, include_misplaced, AliasTaken, FileRefused.
    """
    _admin(pooler, config)
    _pooling(pooler, config)
    _config(pooler, host, config.get("conffile", ""))
    return _included(topology, pooler, host, place)


def _pooling(pooler: Pooler, config: Mapping[str, str]) -> None:
    """Refuse a pooler that resets its server connections between clients, if that does harm.

    A shard's alias sets search_path when a connection is made; DISCARD ALL would take it away.
    """
    if "shard" not in pooler.aliases or not config.get("server_reset_query"):
        return
    if config.get("pool_mode") == "session":
        raise faults.PoolingUnfit(pooler.name, "pool_mode = session")
    if config.get("server_reset_query_always") == "1":
        raise faults.PoolingUnfit(pooler.name, "server_reset_query_always = 1")


def _admin(pooler: Pooler, config: Mapping[str, str]) -> None:
    admins = config.get("admin_users", "")
    # Over a socket, PgBouncer takes its own user's `pgbouncer` for an admin.
    own = pooler.host.startswith("/") and pooler.admin_user == "pgbouncer"
    if not own and pooler.admin_user not in admins.replace(",", " ").split():
        raise faults.not_pooler_admin(pooler.name, pooler.admin_user, admins)


def _config(pooler: Pooler, host: Host, runs_with: str) -> None:
    """Compare the file that the pooler reads with the topology's, links aside.

    A relative name is relative to a directory that the console does not show: of that, only
    the file's own name is compared.
    """
    if not runs_with.startswith("/"):
        same = Path(runs_with).name == pooler.config.name
    else:
        user = pooler.os_user
        theirs = files.place_of(host, Path(runs_with), user=user)
        same = theirs == files.place_of(host, pooler.config, user=user)
    if not same:
        raise faults.OtherConfig(pooler.name, runs_with, pooler.config)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the configuration; `ours` is the one that includes the file of aliases."""

    path: Path
    number: int
    text: str
    ours: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def _included(topology: Topology, pooler: Pooler, host: Host, place: str) -> frozenset[str]:
    """See that the configuration includes the file of aliases, where that does no harm.

    Gives the databases that it has beside. Raises NotIncluded, include_misplaced, AliasTaken.
    """
    lines = _lines(pooler, host, pooler.config, place)
    if not any(line.ours for line in lines):
        raise faults.NotIncluded(pooler.name, pooler.config, pooler.databases_file)
    # What follows an include belongs to the section in which the other file ends.
    meant, read = (_settings(lines, of_ours=text) for text in ("", "[databases]"))
    for setting, as_meant in zip(read, meant, strict=True):
        if setting.section != as_meant.section:
            where = str(lines[setting.line - 1])
            raise Refused(
                "include_misplaced",
                f"pooler {pooler.name}: {where}: {setting.key} is after the include of "
                f"{pooler.databases_file}, which ends in section [databases]: "
                "PgBouncer would read it as a database",
                hint=f"move the line %include {pooler.databases_file} to the end of the "
                "configuration",
            )
    own = [s for s in read if s.section == "databases"]
    ours = {entry.alias for entry in render.entries(topology, pooler)}
    taken = [(s.key, str(lines[s.line - 1])) for s in own if s.key in ours]
    if taken:
        raise faults.AliasTaken(pooler.name, taken)
    return frozenset(s.key for s in own)


def _settings(lines: Sequence[_Line], *, of_ours: str) -> list[ini.Setting]:
    """Read all lines as one file, with a text in the place of the file of aliases."""
    text = "\n".join(of_ours if line.ours else line.text for line in lines)
    return [item for item in ini.read(text) if isinstance(item, ini.Setting)]


def _lines(pooler: Pooler, host: Host, path: Path, place: str, *, depth: int = 0) -> list[_Line]:
    """List a configuration's lines as PgBouncer goes through them, includes and all."""
    text = files.read(host, path, user=pooler.os_user)
    if text is None:
        why = "" if path == pooler.config else f" ({_RELATIVE})"
        raise files.FileRefused(path, f"no such file{why}")
    includes = {item.line: item for item in ini.read(text) if isinstance(item, ini.Include)}
    found: list[_Line] = []
    for number, line in enumerate(text.split("\n"), 1):
        if number not in includes:
            found.append(_Line(path, number, line))
            continue
        if line.lstrip().startswith("["):  # a section and an include on one line
            found.append(_Line(path, number, f"[{includes[number].section}]"))
        # A relative name is relative to an unknown directory: mostly it is this one.
        other = pooler.config.parent / includes[number].path
        if files.place_of(host, other, user=pooler.os_user) == place:
            found.append(_Line(path, number, line, ours=True))
        elif depth < _DEPTH:
            found += _lines(pooler, host, other, place, depth=depth + 1)
    return found
