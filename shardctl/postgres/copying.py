"""Copy a node onto another host, so that the copy can follow it."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, NamedTuple, cast

import psycopg

from shardctl import libpq
from shardctl.errors import Refused, ShardctlError
from shardctl.meter import BYTES
from shardctl.postgres import clone as clones
from shardctl.postgres import configuration, queries, slots
from shardctl.postgres.configuration import Rule
from shardctl.postgres.connection import is_lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.clone import Clone
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Database, Node

logger = logging.getLogger(__name__)

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_FIRST_POLL, _LAST_POLL = 0.05, 0.5
_LOOK_S = 5.0
_LINES = 5
_RATE = re.compile(r" *\d+/\d+ kB \(\d+%\).*")
_COPYING = "streaming database files"


class CopyFailed(ShardctlError):
    """A program that did not copy to the end; what it had copied is gone again."""

    def __init__(self, node: str, program: str, lines: Sequence[str]) -> None:
        said = lines or ["no output: the program was killed"]
        super().__init__(
            "\n  ".join([f"node {node}: the copy failed; {program} printed:", *said]),
            hint="fix the cause, then run `shardctl moves resume` to copy again",
        )


class Source(NamedTuple):
    """The node that is cloned."""

    node: Node
    database: Database


def make(
    clone: Clone,
    source: Source,
    session: Connection,
    *,
    addresses: Sequence[str],
    progress: Progress,
    max_rate: int | None = None,
    clone_with: str | None = None,
) -> None:
    """Copy the source into the target's data directory, ready to be started as its standby.

    `session` is with the source, in autocommit, and the slot is made. Until it is opened up,
    the clone accepts only shardctl, from `addresses` (IP addresses or networks). A copy that
    an earlier shardctl began and did not live to see is gone on with, or made again if it
    broke off; `clone_with` is the command, pg_basebackup by default. On Ctrl-C, what was copied is
    deleted. Raises CopyFailed, role_not_admitted, and `clone`'s errors.
    """
    argv = _command(clone, source, max_rate, clone_with)
    state = clones.look(clone)
    if state in ("made", "opened"):
        clones.discard(clone)  # what is left where the last step was killed
        return
    # Now, and not only when everything is copied.
    files(clone, source, session, addresses)
    if state in ("absent", "broken"):
        clones.discard(clone)
        slots.release(session, clone.slot, time.monotonic() + slots.PATIENCE)
        clones.begin(clone)
        clones.copy(clone, argv)
    name = "`move.clone_with`" if clone_with else "pg_basebackup"
    try:
        _wait(clone, name, session, progress)
    except (KeyboardInterrupt, CopyFailed):
        clones.discard(clone)
        raise
    clones.fill(clone, files(clone, source, session, addresses))
    clones.place(clone)


def _command(
    clone: Clone, source: Source, max_rate: int | None, clone_with: str | None
) -> list[str]:
    """Give what fills `clone.copy`: the operator's command, or pg_basebackup.

    A session that copies has the slot's name: by that its progress is found, and it is ended.
    """
    conninfo = libpq.for_replication(*source, clone.slot)
    rate = f"{max_rate // 1024}k" if max_rate else ""
    if clone_with is not None:
        given = {"DATA": clone.copy, "SOURCE": conninfo, "SLOT": clone.slot}
        given |= {"BIN": clone.server.binaries.directory, "MAX_RATE": rate}
        named = [f"{name}={value}" for name, value in given.items()]
        return ["env", *named, "sh", "-c", clone_with]
    argv = [clone.server.binaries.program("pg_basebackup"), "-D", str(clone.copy), "-d", conninfo]
    argv += ["--no-password", "--slot", clone.slot, "--wal-method=stream", "--checkpoint=fast"]
    # Asked for progress, the server sends the total, too.
    argv += ["--progress", "--no-manifest"]
    return [*argv, "--max-rate", rate] if rate else argv


def rules(user: str, session: Connection, addresses: Sequence[str]) -> str:
    """Compose the rules by which a clone accepts shardctl's `user`, as its source does.

    Raises role_not_admitted.
    """
    found = session.execute(_QUERIES["rules"], {"user": user})
    given = [Rule(t, tuple(d), a, m, how, tuple(o)) for t, d, a, m, how, o in found]
    return configuration.access(user, addresses, given)


def _wait(
    clone: Clone,
    program: str,
    session: Connection,
    progress: Progress,
) -> None:
    """Wait until the copy is made; raises CopyFailed.

    While the source reports that it sends the copy, the host is asked seldom: only where the
    program was killed, and its helper for WAL has kept the session open, does it know more.
    """
    watcher = _Watcher(clone, session, progress)
    delay, looked = _FIRST_POLL, time.monotonic()
    while True:
        if not watcher.sends() or time.monotonic() - looked > _LOOK_S:
            state, looked = clones.look(clone), time.monotonic()
            if state != "copying":
                break
        time.sleep(delay)
        delay = min(delay * 1.25, _LAST_POLL)
    if state != "copied":
        said = [] if state == "absent" else clones.said(clone)
        reported = [line for line in said if not _RATE.fullmatch(line)][-_LINES:]
        raise CopyFailed(clone.server.name, program, reported)


class _Watcher:
    """Reports the progress of the copy as the source has it."""

    def __init__(self, clone: Clone, session: Connection, progress: Progress) -> None:
        self._clone = clone
        self._session = session
        self._progress = progress
        self._phase = ""
        self._done = 0

    def sends(self) -> bool:
        """Return whether the source reports the copy, and show what has changed.

        A source that is lost ends the copy by itself.
        """
        if self._session.closed:
            return False
        try:
            name = {"name": self._clone.slot}
            row = self._session.execute(_QUERIES["backup_progress"], name).fetchone()
        except psycopg.Error as error:
            if not is_lost(error):
                raise
            logger.info("node %s: cannot read the progress: %s", self._clone.server.name, error)
            return False
        if row is None and self._phase != _COPYING:
            return False  # not begun yet, or reported already
        reported, done, total = row or ("", 0, 0)
        phase = reported or "finishing"
        node = self._clone.server.name
        if phase != self._phase:
            known = total if phase == _COPYING and total else 0
            self._progress.expect(node, phase, known, BYTES)
            self._phase, self._done = phase, 0
        if phase == _COPYING:
            self._progress.advance(node, done - self._done)
            self._done = done
        return row is not None


def files(
    clone: Clone, source: Source, session: Connection, addresses: Sequence[str]
) -> dict[str, bytes]:
    """Compose the files that make a standby of the copy, and of the standby a node.

    Raises files_elsewhere, role_not_admitted.
    """
    server, node = clone.server, source.node.name
    hba, ident = login_files(node, session)
    settings = dict(cast("list[tuple[str, str]]", session.execute(_QUERIES["settings"]).fetchall()))
    given = configuration.parameters(
        node=server.name, host=server.host, port=server.port, settings=server.settings
    )
    follow = configuration.following(
        conninfo=libpq.for_replication(*source, clone.slot),
        slot=clone.slot,
        others=[*configuration.taken(settings), *server.settings],
        unknown=server.own_start is not None,
    )
    always: dict[str, str] = {}
    if server.own_start is not None:
        always = configuration.wherever(settings, given, str(server.data_directory))
    opened = configuration.opened(server.settings, follow)
    texts = {
        "standby.signal": "",
        configuration.NAME: configuration.cloned(
            settings, configuration.composed(given), source=node
        ),
        clones.AUTO: configuration.automatic({**always, **follow}),
        clones.HBA: rules(source.database.user, session, addresses),
        f"{clones.MARK}/{clones.AUTO}": configuration.automatic({**always, **opened}),
    }
    return {
        **{name: text.encode() for name, text in texts.items()},
        clones.IDENT: ident,
        f"{clones.MARK}/{clones.HBA}": hba,
    }


def login_files(node: str, session: Connection) -> list[bytes]:
    """Read the source's pg_hba.conf and pg_ident.conf, wherever they are.

    Raises files_elsewhere.
    """
    held = []
    for name, beside_data, text in session.execute(_QUERIES["files"]):
        included = configuration.elsewhere(text.decode(errors="replace"), beside_data=beside_data)
        if included:
            raise Refused(
                "files_elsewhere",
                f"node {node}: {name} includes files that are not copied to a clone: "
                f"{', '.join(included)}",
                hint=f"move their settings into {name} itself, then reload that server",
            )
        held.append(bytes(text))
    return held
