"""The clone of a node as directories on its host: its state, its move, its end.

`copying` fills it, `standby` runs it. All goes through the host, so that a clone on another
machine is made the same way.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from shardctl.errors import Refused, ShardctlError
from shardctl.hosts import accounts, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.meter import listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.postgres.hosted import HostedServer

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


@dataclass(frozen=True, slots=True)
class Clone:
    """What a move makes on the target's host: `server` is what runs it there.

    `slot` names the source's replication slot, and all sessions that copy or follow.
    """

    move: str
    slot: str
    server: HostedServer

    @property
    def machine(self) -> Host:
        """The target's host."""
        return self.server.machine

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


def begin(clone: Clone) -> None:
    """Make the directory for the copy, where `look` found none; raises clone_refused."""
    _run_as_owner(clone, "begin", clone.server.account or "")


def copy(clone: Clone, argv: Sequence[str]) -> None:
    """Start the program that fills `clone.copy`, whose end `look` will report.

    It goes on when shardctl or its connection dies. Raises clone_refused.
    """
    _run(clone, "copy", *argv)


def said(clone: Clone) -> list[str]:
    """Give the last lines of that program; raises clone_refused."""
    return _run(clone, "said").splitlines()


def fill(clone: Clone, files: Mapping[str, bytes]) -> None:
    """Put files into the copy, in the place of what was copied there, and mark it.

    Names are relative to the data directory. Raises clone_refused.
    """
    marked = {**files, f"{MARK}/move": f"{clone.move}\n".encode()}
    text = "".join(f"{n} {base64.b64encode(held).decode()}\n" for n, held in marked.items())
    _run(clone, "fill", text=text)


def place(clone: Clone) -> None:
    """Let the filled copy become the data directory, in one step; raises clone_refused."""
    _run_as_owner(clone, "place")


def discard(clone: Clone) -> None:
    """End what copies, and delete all that is not yet the data directory; there or not.

    Raises CloneOfAnother and clone_refused.
    """
    _run_as_owner(clone, "discard", timeout=None)


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
        _run_as_owner(clone, "remove", timeout=None)
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


def _run_as_owner(clone: Clone, part: str, *words: str, timeout: float | None = _SECONDS) -> str:
    """Run a part that makes, renames or deletes what is beside the data directory.

    As the server's user, if that one may; else as shardctl's login user. Raises folder_unsafe.
    """
    parent, account = clone.server.data_directory.parent, clone.server.account
    user = accounts.changes_folder(clone.machine, parent, account)
    return _script(clone, part, *words, user=user, timeout=timeout)


def _run(clone: Clone, part: str, *words: str, text: str = "") -> str:
    return _script(clone, part, *words, user=clone.server.account, text=text)


def _script(
    clone: Clone,
    part: str,
    *words: str,
    user: str | None,
    text: str = "",
    timeout: float | None = _SECONDS,
) -> str:
    whose = str(clone.server.data_directory), clone.move
    try:
        return scripts.run(
            clone.machine, "clone", part, *whose, *words, user=user, text=text, timeout=timeout
        )
    except CommandFailed as error:
        raise _refused(clone, error) from error


def _refused(clone: Clone, error: CommandFailed) -> ShardctlError:
    node, directory = clone.server.name, clone.server.data_directory
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
