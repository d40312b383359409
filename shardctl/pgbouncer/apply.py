"""The file of a pooler's aliases: read it, show what differs, replace it, prove it.

A pooler is refused that cannot be changed: its admin, its configuration, what that includes.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardctl.errors import Incomplete, Refused, ShardctlError
from shardctl.hosts import files
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import CommandRefused, Console, PoolerLost, PoolerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.hosts.files import Place
    from shardctl.hosts.host import Host
    from shardctl.pgbouncer.console import Alias
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Pooler, Topology

OLDEST = (1, 18)
"""The oldest PgBouncer that all this was tried with."""

_PROOF_SECONDS = 2.0
_POLL = 0.02
_SHOWN = 3
_NOT_LOADED = "config file loading failed"
"""What PgBouncer's log has of a RELOAD that failed; before 1.25, the answer has nothing."""

_ITS = "its configuration"
_INCLUDE = re.compile(r"%include\s+(.*)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pooler should have, and what has to be done to get there.

    `before` is the file of aliases as it was found, None where there is none.
    """

    pooler: Pooler
    host: Host
    place: Place
    before: str | None
    text: str
    entries: tuple[Entry, ...]
    action: Literal["write", "reload", "none"]


_STAGED, _LS_S = ".staged", 30.0


def staged(pooler: Pooler, move: str) -> Path:
    """Name the file that a move puts beside a pooler's file before its cutover.

    Each move has its own: a guard of one puts it in place while another is aborted.
    """
    return pooler.databases_file.with_name(f"{pooler.databases_file.name}.{move}{_STAGED}")


def staged_there(pooler: Pooler, host: Host) -> list[Path]:
    """List the files that moves have put there; raises FileRefused."""
    place = pooler.databases_file
    with files.named(place.parent):
        found = host.run(
            ["ls", "-A", "--", str(place.parent)], user=pooler.os_user, timeout=_LS_S
        ).stdout
    names = [n for n in found.splitlines() if n.startswith(place.name) and n.endswith(_STAGED)]
    return [place.with_name(name) for name in names]


def in_no_journal(pooler: Pooler, found: Iterable[Path], moves: Iterable[str]) -> list[Path]:
    """Give the staged files of other moves than these, which the nodes that answer know."""
    return sorted({*found} - {staged(pooler, move) for move in moves})


class FileStaged(Refused):
    """A file that a move has put beside a pooler's, maybe a move of nodes that are away."""

    def __init__(self, pooler: Pooler, staged: Path, *, then: str = "the command again") -> None:
        super().__init__(
            "file_staged",
            f"pooler {pooler.name}: {staged} belongs to a move, possibly of nodes that cannot be "
            "read",
            hint=f"start these nodes and end the move (`shardctl moves list`), then run {then}",
        )


def observe(
    topology: Topology, pooler: Pooler, host: Host, *, purpose: str
) -> tuple[Place, str | None, Mapping[str, Alias]]:
    """Look at a pooler and its file, and change nothing; give place and text, and what it offers.

    Raises PoolerUnavailable, FileRefused, and refuses whatever `carry_out` would fail at.
    """
    try:
        with Console(pooler, topology.database, purpose=purpose) as console:
            version = console.version()
            if tuple(map(int, version.split(".")[:2])) < OLDEST:
                raise Refused(
                    "pooler_too_old",
                    f"pooler {pooler.name}: PgBouncer {version} is too old",
                    hint=f"install PgBouncer {'.'.join(map(str, OLDEST))} or newer there",
                )
            config = console.config()
            offered = console.databases()
    except PoolerLost as error:  # nothing was begun
        raise PoolerUnavailable(pooler, f"{error.command}: {error.reason}") from error
    place = files.place(host, pooler.databases_file, user=pooler.os_user)
    _require_settings(pooler, config)
    _require_files(pooler, host, place=place.path, runs_with=config.get("conffile", ""))
    return place, files.read(host, pooler.databases_file, user=pooler.os_user), offered


def plan(
    topology: Topology, pooler: Pooler, host: Host, version: int, *, force: bool, purpose: str
) -> Wanted:
    """Compare a pooler with what it should have by this version of the map.

    Raises pooler_file_edited and pooler_file_of_other unless `force`, what `observe` raises, and
    what rendering raises.
    """
    place, before, offered = observe(topology, pooler, host, purpose=purpose)
    text, entries = render.databases(topology, pooler, version), render.entries(topology, pooler)
    if not force:
        _require_ours(topology, pooler, before, version)
    loaded: Literal["none", "reload"] = "reload" if differences(entries, offered) else "none"
    action = loaded if before == text else "write"
    return Wanted(pooler, host, place, before, text, tuple(entries), action)


def carry_out(topology: Topology, wanted: Wanted, *, purpose: str) -> None:
    """Write the file, let the pooler read it, and see that it offers what the file has.

    When it does not, the file before is put back. Raises FileRefused (nothing changed),
    reload_rejected (the old file is in force again), pooler_file_not_restored, PoolerLost,
    PoolerUnavailable.
    """
    if wanted.action == "none":
        return
    pooler, host = wanted.pooler, wanted.host
    with Console(pooler, topology.database, purpose=purpose) as console:
        if wanted.action == "write":
            files.write(host, pooler.databases_file, wanted.text, user=pooler.os_user)
        problems = _reload(pooler, host, console) or _not_taken(wanted, console)
        if not problems:
            return
        if wanted.action == "write":
            _put_back(wanted, console, problems[:_SHOWN])
    restored = "the new configuration; shardctl has restored the old one"
    raise _reload_rejected(pooler, restored if wanted.action == "write" else _ITS, problems)


def try_reload(pooler: Pooler, host: Host, console: Console) -> None:
    """Let a pooler read its files as they are; raises reload_rejected where it cannot.

    And PoolerLost. A file that shardctl puts beside the present one, with the same owner and
    mode, is then read from the same place with the same result.
    """
    if problems := _reload(pooler, host, console):
        raise _reload_rejected(pooler, _ITS, problems)


def _reload(pooler: Pooler, host: Host, console: Console) -> list[str]:
    """Let a pooler read its files; give why it could not, by its log, or else by its answer.

    Before 1.25, the answer does not show it. A log that is syslog's, relative, or not ours shows
    nothing: what is offered has to.
    """
    log, since = console.config().get("logfile", ""), None
    lines, refused = list[str](), list[str]()
    with contextlib.suppress(files.FileRefused):
        since = files.size(host, log, user=pooler.os_user) if log.startswith("/") else None
    try:
        console.reload()
    except CommandRefused as error:
        refused = [error.reason]
    with contextlib.suppress(files.FileRefused):
        lines = [] if since is None else files.tail(host, log, since=since, user=pooler.os_user)
    failed = any(_NOT_LOADED in line for line in lines)
    reasons = [line for line in lines if failed and (" ERROR " in line or " WARNING " in line)]
    return reasons or refused


def _reload_rejected(pooler: Pooler, what: str, lines: Sequence[str]) -> Refused:
    """Report a configuration that the pooler did not take."""
    return Refused(
        "reload_rejected",
        "\n  ".join([f"pooler {pooler.name}: PgBouncer rejected {what}", *lines[:_SHOWN]]),
        hint="fix the cause in its log, then run the command again",
    )


def reload_ms(aliases: int) -> float:
    """Estimate how long a pooler serves no client while it reloads so many aliases.

    A parabola through what `make bench` measured (rows `RELOAD`, PgBouncer 1.18, two cores): 8
    aliases took 0.3 ms, 1,000 took 2.7 ms and 8,192 took 165 ms.

    >>> [round(reload_ms(n), 1) for n in (8, 1000, 8192)]
    [0.3, 2.7, 161.4]
    """
    return 0.3 + 2.4e-6 * aliases**2


def diff(seen_text: str | None, wanted: str, path: Path) -> str:
    """Write a unified diff from the present file to the expected one; empty if equal."""
    lines = difflib.unified_diff(
        (seen_text or "").splitlines(keepends=True),
        wanted.splitlines(keepends=True),
        str(path) if seen_text is not None else "/dev/null",
        f"{path} (expected)",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def differences(entries: Iterable[Entry], offered: Mapping[str, Alias]) -> list[str]:
    """List, a line each, what a pooler offers that differs from these entries."""
    found = []
    for entry in entries:
        alias = offered.get(entry.alias)
        right = f"{entry.host}:{entry.port}/{entry.dbname}"
        if alias is None:
            found.append(f"{entry.alias} is not offered")
        elif (alias.host, alias.port, alias.dbname) != (entry.host, entry.port, entry.dbname):
            found.append(
                f"{entry.alias} leads to {alias.host}:{alias.port}/{alias.dbname}, not to {right}"
            )
    return found


def _require_ours(topology: Topology, pooler: Pooler, text: str | None, map_version: int) -> None:
    """Refuse to replace what another session wrote; an empty file has no owner."""
    if text is None or not text.strip():
        return
    header = render.header(text)
    if header is None or header.edited:
        what = "was not written by shardctl" if header is None else "was changed by hand"
        raise Refused(
            "pooler_file_edited",
            f"pooler {pooler.name}: {pooler.databases_file} {what}",
            hint="run `shardctl pgbouncer diff` to see what --force would replace; move your "
            "own databases to another file",
        )
    if header.cluster != topology.cluster:
        raise _of_other(pooler, f"cluster {header.cluster}")
    require_not_newer(pooler, text, map_version)


def require_not_newer(pooler: Pooler, text: str | None, map_version: int) -> None:
    """Refuse to replace a file of a newer map, of which nodes that are away may know.

    Raises pooler_file_of_other.
    """
    header = render.header(text or "")
    if header is not None and header.map_version > map_version:
        what = f"map version {header.map_version}; the databases have version {map_version}"
        raise _of_other(pooler, what)


def _of_other(pooler: Pooler, what: str) -> Refused:
    """Report a file that belongs to another cluster, or to a newer map than the databases have."""
    return Refused(
        "pooler_file_of_other",
        f"pooler {pooler.name}: {pooler.databases_file} belongs to {what}",
        hint="check that the topology is the newest and that this pooler belongs to it; "
        "--force replaces the file",
    )


def _not_taken(wanted: Wanted, console: Console) -> list[str]:
    """Wait until the pooler offers what the file has; give differences if it never does."""
    deadline = time.monotonic() + _PROOF_SECONDS
    while differ := differences(wanted.entries, console.databases()):
        if time.monotonic() > deadline:
            return differ
        time.sleep(_POLL)
    return []


def _put_back(wanted: Wanted, console: Console, problems: Sequence[str]) -> None:
    """Restore the file before, to the byte, and let the pooler read it.

    Raises pooler_file_not_restored.
    """
    pooler, place = wanted.pooler, wanted.place.path
    try:
        if wanted.before is None:
            files.remove(wanted.host, pooler.databases_file, user=pooler.os_user)
        else:
            before = Path(place + files.BACKUP)
            files.replace(wanted.host, before, place, user=pooler.os_user)
        with contextlib.suppress(CommandRefused):  # the cause was not ours then, and is reported
            console.reload()
    except ShardctlError as error:
        lines = [*problems, error.message]
        raise Incomplete(
            "pooler_file_not_restored",
            f"pooler {pooler.name}: PgBouncer rejected the new configuration, and could not be "
            + "\n  ".join(["restored to the old one", *lines]),
            hint=f"check {pooler.databases_file} and the pooler's log, then run the command again",
        ) from error


def _require_settings(pooler: Pooler, config: Mapping[str, str]) -> None:
    """Refuse a user who may change nothing, and a pooling in which shards' aliases do harm.

    A shard's alias sets search_path when a connection is made; DISCARD ALL would take it away.
    """
    admins, user = config.get("admin_users", ""), pooler.admin_user
    # Over a socket, PgBouncer takes its own user's `pgbouncer` for an admin.
    own = pooler.host.startswith("/") and user == "pgbouncer"
    if not own and user not in admins.replace(",", " ").split():
        raise Refused(
            "not_pooler_admin",
            f"pooler {pooler.name}: {user} is not in its admin_users ({admins or 'empty'})",
            hint=f"add {user} to admin_users of the pooler, or set another admin_user",
        )
    unfit = (("pool_mode", "session"), ("server_reset_query_always", "1"))
    resets = [f"{name} = {value}" for name, value in unfit if config.get(name) == value]
    if "shard" in pooler.aliases and config.get("server_reset_query") and resets:
        raise Refused(
            "pooling_unfit",
            f"pooler {pooler.name}: with {resets[0]}, the second client of a connection would "
            "not be in its shard",
            hint="set pool_mode = transaction there (and server_reset_query_always = 0), or "
            "offer only aliases of nodes (`aliases: [node]`)",
        )


def _require_files(pooler: Pooler, host: Host, *, place: str, runs_with: str) -> None:
    """Refuse a pooler that reads another file, or whose last line does not include the aliases.

    `place` is the file of aliases without links. In the last line it does no harm: what follows an
    include belongs to the section in which that file ends, and of two databases of one name
    PgBouncer takes the last. Relative names are relative to a directory that the console does not
    show: mostly it is that of the configuration.
    """
    config, user = pooler.config, pooler.os_user
    reads = Path(runs_with) if runs_with.startswith("/") else config.parent / Path(runs_with).name
    if files.place_of(host, reads, user=user) != files.place_of(host, config, user=user):
        raise Refused(
            "other_config",
            f"pooler {pooler.name}: it runs with {runs_with}, not with {config}: a RELOAD would "
            "have no effect",
            hint="correct `config` of the pooler in the topology, or its host and port",
        )
    text = files.read(host, config, user=user)
    if text is None:
        raise files.FileRefused(config, "no such file")
    lines = [line.strip() for line in text.split("\n")]
    said = [line for line in lines if line and not line.startswith((";", "#"))]
    last = _INCLUDE.fullmatch(said[-1]) if said else None
    if last is None or place != files.place_of(host, config.parent / last[1], user=user):
        raise Refused(
            "not_included",
            f"pooler {pooler.name}: the last line of {config} does not include "
            f"{pooler.databases_file}, so the pooler would not offer its aliases",
            hint=f"make this the last line of {config}: %include {pooler.databases_file}",
        )
