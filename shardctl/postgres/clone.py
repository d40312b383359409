"""The clone of a node: copied onto another host, configured to follow, put in its place, ended.

`standby` runs it. All goes through the host, so that a clone on another machine is made the same
way.
"""

from __future__ import annotations

import base64
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import psycopg

from shardctl import libpq
from shardctl.errors import Refused, ShardctlError
from shardctl.hosts import accounts, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.meter import BYTES, listed
from shardctl.postgres import configuration, queries, slots
from shardctl.postgres.connection import is_lost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.hosted import HostedServer
    from shardctl.topology.model import Database, Node

logger = logging.getLogger(__name__)

State = Literal["absent", "copying", "copied", "broken", "made", "opened"]
"""The state of a clone.

`copying`: a program fills it, for whomever started it. `copied`: it has ended well. `broken`:
it has not, or was killed. `made`: the data directory is whole and has the mark of the move.
`opened`: its own files were put into force. After `keep` it is a node like any other, and
counts as another session's.
"""

HBA = "pg_hba.conf"
IDENT = "pg_ident.conf"
AUTO = "postgresql.auto.conf"
MARK = "shardctl.clone"
"""The directory in a data directory that shows the move of its clone."""
OPENING_ONCE = f"cd {MARK} && exec mv -f -- {AUTO} {HBA} .."
"""What `open_files` does where none of it was done, for a shell in the data directory."""

_FOREIGN, _OTHER, _SERVES = 71, 72, 73  # what the script ends with
_SECONDS = 120.0

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_FIRST_POLL, _LAST_POLL = 0.05, 0.5
_LOOK_S = 5.0
_LINES = 5
_RATE = re.compile(r" *\d+/\d+ kB \(\d+%\).*")


class TargetNotEmpty(ShardctlError):
    """A data directory with something in it that no clone of this move is."""

    def __init__(self, node: str, directory: Path, holds: list[str]) -> None:
        super().__init__(
            f"node {node}: {directory} is not empty: {listed(holds)}",
            hint="move its contents away, or give the node another data_directory",
        )


class CloneOfAnother(ShardctlError):
    """A data directory that another move has begun to clone into."""

    def __init__(self, node: str, directory: Path, move: str) -> None:
        super().__init__(
            f"node {node}: {directory} belongs to move {move}",
            hint=f"run `shardctl moves abort {move}` or `resume` to end that move",
        )


class CopyFailed(ShardctlError):
    """A program that did not copy to the end; what it had copied is gone again."""

    def __init__(self, node: str, program: str, lines: Sequence[str]) -> None:
        said = lines or ["no output: the program was killed"]
        super().__init__(
            "\n  ".join([f"node {node}: the copy failed; {program} printed:", *said]),
            hint="fix the cause, then run `shardctl moves resume` to copy again",
        )


@dataclass(frozen=True, slots=True)
class Clone:
    """What a move makes on the target's host: `server` is what runs it there.

    `slot` names the source's replication slot, and all sessions that copy or follow.
    """

    move: str
    slot: str
    server: HostedServer

    @property
    def work(self) -> Path:
        """The directory beside the final one in which the copy is made."""
        return self.server.data_directory.with_name(f"{self.server.data_directory.name}.clone")

    @property
    def copy(self) -> Path:
        """The copy, until it takes the data directory's place."""
        return self.work / "data"


def look(clone: Clone) -> State:
    """Return its state, and change nothing.

    Raises TargetNotEmpty, CloneOfAnother, clone_refused.
    """
    return cast("State", _run(clone, "look").strip())


def fill(clone: Clone, files: Mapping[str, bytes]) -> None:
    """Put files into the copy, in the place of what was copied there, and mark it.

    Names are relative to the data directory. Raises clone_refused.
    """
    marked = {**files, f"{MARK}/move": f"{clone.move}\n".encode()}
    text = "".join(f"{n} {base64.b64encode(held).decode()}\n" for n, held in marked.items())
    _run(clone, "fill", text=text)


def discard(clone: Clone) -> None:
    """End what copies, and delete all that is not yet the data directory; there or not.

    Raises CloneOfAnother and clone_refused.
    """
    _run(clone, "discard", timeout=None, beside=True)


def admit(clone: Clone, rules: str) -> bool:
    """Add rules for shardctl to those of a clone that is not opened; return whether any was new.

    The server has yet to read them. Raises CloneOfAnother and clone_refused.
    """
    return bool(_run(clone, "admit", text=rules))


def remove(clone: Clone) -> bool:
    """Undo a clone: end it, and delete what this move made, nothing else; return if it existed.

    Directories without this move's mark stay. Raises clone_serves for one that was promoted,
    clone_refused and server_did_not_stop.
    """
    try:
        found = look(clone)
    except (TargetNotEmpty, CloneOfAnother):
        return False
    if found in ("made", "opened"):
        _run(clone, "require_standby")  # before anything is stopped
        clone.server.stop(mode="immediate")  # nothing of it is needed any more
        _run(clone, "remove", timeout=None, beside=True)
    discard(clone)
    return found != "absent"


def open_files(clone: Clone) -> None:
    """Put the node's own files into the place of the clone's, as far as that is not done.

    Raises CloneOfAnother and clone_refused.
    """
    _run(clone, "open")


def keep(clone: Clone) -> None:
    """Take the move's mark off an opened clone: it is a node now, and no move deletes it.

    Raises CloneOfAnother, and clone_refused for one that was not opened.
    """
    _run(clone, "keep")


def _run(
    clone: Clone,
    part: str,
    *words: str,
    text: str = "",
    timeout: float | None = _SECONDS,
    beside: bool = False,
) -> str:
    """Run a part of the script as the server's user, and give what it prints.

    What makes, renames or deletes something `beside` the data directory runs as that user, too, if
    that one may; else as shardctl's login user. Raises folder_unsafe then.
    """
    directory, user, host = clone.server.data_directory, clone.server.account, clone.server.machine
    if beside:
        user = accounts.changes_folder(host, directory.parent, user)
    words = part, str(directory), clone.move, *words
    try:
        return scripts.run(host, "clone", *words, user=user, text=text, timeout=timeout)
    except CommandFailed as error:
        raise _refused(clone, error) from error


def _refused(clone: Clone, error: CommandFailed) -> ShardctlError:
    node, directory = clone.server.node.name, clone.server.data_directory
    reason = error.reason
    if error.completed.code == _FOREIGN:
        return TargetNotEmpty(node, directory, error.lines)
    if error.completed.code == _OTHER:
        return CloneOfAnother(node, directory, reason)
    if error.completed.code == _SERVES:
        return Refused(
            "clone_serves",
            f"node {node}: {directory} {reason}; shardctl does not delete it",
            hint="run `shardctl moves show` to see the move's phase; after an aborted move, "
            "move the directory away by hand",
        )
    named = reason if str(directory) in reason else f"{directory}: {reason}"
    return Refused(
        "clone_refused",
        f"node {node}: {named}",
        hint="free disk space, correct the permissions, or give the node another data_directory",
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
    state = look(clone)
    if state in ("made", "opened"):
        discard(clone)  # what is left where the last step was killed
        return
    # Now, and not only when everything is copied.
    files(clone, source, session, addresses)
    if state in ("absent", "broken"):
        discard(clone)
        slots.release(session, clone.slot, time.monotonic() + slots.PATIENCE)
        _run(clone, "begin", clone.server.account or "", beside=True)
        _run(clone, "copy", *argv)  # goes on when shardctl or its connection dies
    name = "`move.clone_with`" if clone_with else "pg_basebackup"
    try:
        _wait(clone, name, session, progress)
    except (KeyboardInterrupt, CopyFailed):
        discard(clone)
        raise
    fill(clone, files(clone, source, session, addresses))
    _run(clone, "place", beside=True)


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
    """Compose the pg_hba.conf by which a clone accepts only `user`, from `addresses`, over TCP.

    By the source's own rules for that role, in their order, so that it proves itself as it does
    there. Addresses are IP addresses or networks. Raises role_not_admitted.
    """
    given = {"user": user, "addresses": [one.partition("%")[0] for one in addresses]}
    found = [line for (line,) in session.execute(_QUERIES["rules"], given)]
    if not found:
        raise Refused(
            "role_not_admitted",
            f"pg_hba.conf of the source rejects {user} from {' and '.join(addresses)}, "
            "and so would its clone",
            hint=f"add an entry to pg_hba.conf of the source, such as: host all {user} "
            f"{addresses[0]} scram-sha-256",
        )
    return "\n".join(["# shardctl: only shardctl, until this clone has become a node", *found, ""])


def _wait(clone: Clone, program: str, session: Connection, progress: Progress) -> None:
    """Wait until the copy is made, and show what the source sends; raises CopyFailed.

    While the source reports that it sends the copy, the host is asked seldom: only where the
    program was killed, and its helper for WAL has kept the session open, does it know more.
    """
    node, phase, done = clone.server.node.name, "", 0
    delay, looked = _FIRST_POLL, time.monotonic()
    while True:
        sent = _sent(clone, session)
        if sent is not None:
            if sent[0] != phase:
                phase, done = sent[0], 0
                progress.expect(node, phase, sent[2] or 0, BYTES)
            progress.advance(node, sent[1] - done)
            done = sent[1]
        if sent is None or time.monotonic() - looked > _LOOK_S:
            state, looked = look(clone), time.monotonic()
            if state != "copying":
                break
        time.sleep(delay)
        delay = min(delay * 1.25, _LAST_POLL)
    if state != "copied":
        said = [] if state == "absent" else _run(clone, "said").splitlines()
        reported = [line for line in said if not _RATE.fullmatch(line)][-_LINES:]
        raise CopyFailed(node, program, reported)


def _sent(clone: Clone, session: Connection) -> tuple[str, int, int | None] | None:
    """Give the phase, and the bytes sent and in all, of the copy that the source reports, if any.

    A source that is lost ends the copy by itself.
    """
    if session.closed:
        return None
    try:
        return session.execute(_QUERIES["backup_progress"], {"name": clone.slot}).fetchone()
    except psycopg.Error as error:
        if not is_lost(error):
            raise
        logger.info("node %s: cannot read the progress: %s", clone.server.node.name, error)
        return None


def files(
    clone: Clone, source: Source, session: Connection, addresses: Sequence[str]
) -> dict[str, bytes]:
    """Compose the files that make a standby of the copy, and of the standby a node.

    Raises files_elsewhere, role_not_admitted.
    """
    server, node = clone.server, source.node.name
    elsewhere = server.own_start is not None
    hba, ident = login_files(node, session)
    settings: dict[str, str] = dict(session.execute(_QUERIES["settings"]).fetchall())
    given = configuration.parameters(server.node)
    follow = configuration.following(
        conninfo=libpq.for_replication(*source, clone.slot),
        slot=clone.slot,
        others=[*settings, *server.node.settings],
        unknown=elsewhere,
    )
    place = str(server.data_directory)
    always = configuration.wherever(settings, given, place) if elsewhere else {}
    opened = configuration.opened(server.node.settings, follow)
    texts = {
        "standby.signal": "",
        configuration.NAME: configuration.cloned(settings, given, source=node),
        AUTO: configuration.automatic({**always, **follow}),
        HBA: rules(source.database.user, session, addresses),
        f"{MARK}/{AUTO}": configuration.automatic({**always, **opened}),
    }
    return {
        **{name: text.encode() for name, text in texts.items()},
        IDENT: ident,
        f"{MARK}/{HBA}": hba,
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
