"""The file of a pooler's aliases: read it, show what differs, replace it, prove it.

A pooler is refused that cannot be changed: its admin, its configuration, what that includes.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardctl.errors import Refused, ShardctlError
from shardctl.hosts import files
from shardctl.pgbouncer import faults, render
from shardctl.pgbouncer.console import CommandRefused, Console, PoolerLost, PoolerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.hosts.files import Place
    from shardctl.hosts.host import Host
    from shardctl.pgbouncer.console import Alias
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Pooler, Topology

logger = logging.getLogger(__name__)

OLDEST = (1, 18)
"""The oldest PgBouncer that all this was tried with."""

_PROOF_SECONDS = 2.0
_POLL = 0.02
_TOLD = 3

_INCLUDE = re.compile(r"%include\s+(.*)")


@dataclass(frozen=True, slots=True)
class Seen:
    """A pooler as it was found; `text` is the file of aliases, None where there is none."""

    pooler: Pooler
    host: Host
    version: str
    place: Place
    text: str | None
    offered: Mapping[str, Alias]
    log: str
    """Its log's name, empty where it has none."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pooler should have, and what has to be done to get there."""

    seen: Seen
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


def observe(topology: Topology, pooler: Pooler, host: Host, *, purpose: str) -> Seen:
    """Look at one pooler and its files, and change nothing.

    Raises PoolerUnavailable, FileRefused, pooler_too_old and what `_require_fit` raises:
    whatever `carry_out` would fail at.
    """
    try:
        with Console(pooler, topology.database, purpose=purpose) as console:
            version = console.version()
            if tuple(map(int, version.split(".")[:2])) < OLDEST:
                oldest = ".".join(map(str, OLDEST))
                raise Refused(
                    "pooler_too_old",
                    f"pooler {pooler.name}: PgBouncer {version} is too old",
                    hint=f"install PgBouncer {oldest} or newer there",
                )
            config = console.config()
            offered = console.databases()
    except PoolerLost as error:  # nothing was begun
        raise PoolerUnavailable(pooler, f"{error.command}: {error.reason}") from error
    place = files.place(host, pooler.databases_file, user=pooler.os_user)
    _require_fit(pooler, host, place=place.path, config=config)
    text = files.read(host, pooler.databases_file, user=pooler.os_user)
    return Seen(pooler, host, version, place, text, offered, config.get("logfile", ""))


def plan(topology: Topology, seen: Seen, map_version: int, *, force: bool) -> Wanted:
    """Compare a pooler with what it should have.

    Raises pooler_file_edited and pooler_file_of_other unless `force`, and what rendering raises.
    """
    text = render.databases(topology, seen.pooler, map_version)
    entries = tuple(render.entries(topology, seen.pooler))
    if not force:
        _require_ours(topology, seen, map_version)
    if seen.text != text:
        return Wanted(seen, text, entries, "write")
    return Wanted(seen, text, entries, "reload" if differences(entries, seen.offered) else "none")


def carry_out(topology: Topology, wanted: Wanted, *, purpose: str) -> None:
    """Write the file, let the pooler read it, and see that it offers what the file has.

    When it does not, the file before is put back. Raises FileRefused (nothing changed),
    reload_rejected (the old file is in force again), pooler_file_not_restored, PoolerLost,
    PoolerUnavailable.
    """
    if wanted.action == "none":
        return
    seen = wanted.seen
    pooler = seen.pooler
    with Console(pooler, topology.database, purpose=purpose) as console:
        log = _Log.of(pooler, seen.host, seen.log)
        if wanted.action == "write":
            files.write(seen.host, pooler.databases_file, wanted.text, user=pooler.os_user)
        try:
            console.reload()
        except CommandRefused as error:
            problems = [error.reason]
        else:
            problems = []
        problems = log.problems() or problems or _not_taken(wanted, console)
        if not problems:
            return
        if wanted.action == "write":
            _put_back(seen, console, problems)
    raise faults.reload_rejected(pooler.name, problems, restored=wanted.action == "write")


def try_reload(pooler: Pooler, host: Host, console: Console) -> None:
    """Let a pooler read its files as they are; raises reload_rejected where it cannot.

    And CommandRefused, PoolerLost. A file that shardctl puts beside the present one, with
    the same owner and mode, is then read from the same place with the same result.
    """
    log = _Log.of(pooler, host, console.config().get("logfile", ""))
    console.reload()
    if problems := log.problems():
        raise faults.reload_rejected(pooler.name, problems, restored=False)


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


def databases_of(text: str | None) -> dict[str, str]:
    """Give the databases that a file of aliases has, with their connection strings."""
    items = render.read_ini(text or "")
    return {item.key: item.value for item in items if item.section == "databases"}


def _require_ours(topology: Topology, seen: Seen, map_version: int) -> None:
    """Refuse to replace what another session wrote; an empty file has no owner."""
    path = seen.pooler.databases_file
    if seen.text is None or not seen.text.strip():
        return
    header = render.header(seen.text)
    if header is None or header.edited:
        raise faults.pooler_file_edited(seen.pooler.name, path, ours=header is not None)
    if header.cluster != topology.cluster:
        raise faults.pooler_file_of_other(seen.pooler.name, path, f"cluster {header.cluster}")
    require_not_newer(seen.pooler, seen.text, map_version)


def require_not_newer(pooler: Pooler, text: str | None, map_version: int) -> None:
    """Refuse to replace a file of a newer map, of which nodes that are away may know.

    Raises pooler_file_of_other.
    """
    header = render.header(text or "")
    if header is not None and header.map_version > map_version:
        what = f"map version {header.map_version}; the databases have version {map_version}"
        raise faults.pooler_file_of_other(pooler.name, pooler.databases_file, what)


def _not_taken(wanted: Wanted, console: Console) -> list[str]:
    """Wait until the pooler offers what the file has; give differences if it never does."""
    deadline = time.monotonic() + _PROOF_SECONDS
    while differ := differences(wanted.entries, console.databases()):
        if time.monotonic() > deadline:
            return _brief(differ)
        time.sleep(_POLL)
    return []


def _brief(lines: Sequence[str]) -> list[str]:
    more = [f"... and {len(lines) - _TOLD} more"] if len(lines) > _TOLD else []
    return [*lines[:_TOLD], *more]


@dataclass(frozen=True, slots=True)
class _Log:
    """A pooler's log from now on; `path` is empty where it may not be read."""

    pooler: Pooler
    host: Host
    path: str
    since: int

    @classmethod
    def of(cls, pooler: Pooler, host: Host, path: str) -> _Log:
        """Note its size now.

        It is not read where it is syslog's, relative to who knows what, or not ours.
        """
        if not path.startswith("/"):
            return cls(pooler, host, "", 0)
        try:
            return cls(pooler, host, path, files.size(host, path, user=pooler.os_user))
        except files.FileRefused as error:
            logger.debug("pooler %s: its log: %s", pooler.name, error.message)
            return cls(pooler, host, "", 0)

    def problems(self) -> list[str]:
        """Give its lines about a RELOAD that failed; before 1.25, the answer has none."""
        if not self.path:
            return []
        user = self.pooler.os_user
        try:
            rotated = files.size(self.host, self.path, user=user) < self.since
            lines = files.tail(self.host, self.path, since=0 if rotated else self.since, user=user)
        except files.FileRefused as error:  # removed since: what is offered has to show it
            logger.debug("pooler %s: its log: %s", self.pooler.name, error.message)
            return []
        if not any(faults.NOT_LOADED in line for line in lines):
            return []
        return _brief([line for line in lines if " ERROR " in line or " WARNING " in line])


def _put_back(seen: Seen, console: Console, problems: Sequence[str]) -> None:
    """Restore the file before, to the byte, and let the pooler read it.

    Raises pooler_file_not_restored.
    """
    pooler = seen.pooler
    try:
        if seen.text is None:
            files.remove(seen.host, pooler.databases_file, user=pooler.os_user)
        else:
            before = Path(seen.place.path + files.BACKUP)
            files.replace(seen.host, before, seen.place.path, user=pooler.os_user)
        with contextlib.suppress(CommandRefused):  # the cause was not ours then, and is reported
            console.reload()
    except ShardctlError as error:
        why = [*problems, error.message]
        raise faults.pooler_file_not_restored(pooler.name, pooler.databases_file, why) from error


def _require_fit(pooler: Pooler, host: Host, *, place: str, config: Mapping[str, str]) -> None:
    """Refuse a pooler whose aliases shardctl could not change, or that could not serve them.

    `place` is the file of aliases without links, `config` the rows of SHOW CONFIG. Raises
    not_pooler_admin, PoolingUnfit, OtherConfig, NotIncluded, FileRefused.
    """
    _admin(pooler, config)
    _pooling(pooler, config)
    _config(pooler, host, config.get("conffile", ""))
    _included(pooler, host, place)


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


def _included(pooler: Pooler, host: Host, place: str) -> None:
    """See that the last line of the configuration includes the file of aliases.

    There it does no harm: what follows an include belongs to the section in which that file ends,
    and of two databases of one name PgBouncer takes the last.
    """
    text = files.read(host, pooler.config, user=pooler.os_user)
    if text is None:
        raise files.FileRefused(pooler.config, "no such file")
    lines = [line.strip() for line in text.split("\n")]
    said = [line for line in lines if line and not line.startswith((";", "#"))]
    last = _INCLUDE.fullmatch(said[-1]) if said else None
    # A relative name is relative to an unknown directory: mostly it is this one.
    if last is None or place != files.place_of(
        host, pooler.config.parent / last[1], user=pooler.os_user
    ):
        raise faults.NotIncluded(pooler.name, pooler.config, pooler.databases_file)
