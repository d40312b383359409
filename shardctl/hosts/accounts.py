"""Which operating-system user runs a server on a host, and where that user may go."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import stat
import threading
from typing import TYPE_CHECKING

from shardctl import inputs
from shardctl.errors import Refused
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.hosts.host import Host

DEFAULTS = ("postgres", "nobody")
"""Who runs servers for root, in order of preference."""

_SECONDS = 30.0
_IDS = 'id -u; for name; do id -u -- "$name" 2>/dev/null || echo none; done'
# Of what is missing nothing bars the way; nor can it be seen behind a directory that does.
_BLOCKED = """
for part; do
    [ -e "$part" ] || [ -L "$part" ] || exit 0
    [ -x "$part" ] || { printf '%s' "$part"; exit 0; }
done
"""
# Who runs it, then every directory through which a path leads, links and all, and the file itself.
_WAY = r"""
walk() {
    [ "${1:-/}" != / ] || { printf '/\0'; return; }
    walk "${1%/*}"
    if [ -L "$1" ] && [ "$((links += 1))" -lt 40 ]; then
        to=$(readlink -- "$1")
        case $to in /*) ;; *) to=${1%/*}/$to ;; esac
        walk "$to"
    else
        printf '%s\0' "$1"
    fi
}
printf '%s\0' "$(id -u)"
walk "$1" | xargs -0 stat -L --printf '%u %f %U %G %n\0' -- 2>/dev/null
exit 0
"""
_MAY_WRITE = r"""
seen=$1
until [ -e "$seen" ] || [ -z "$seen" ]; do seen=${seen%/*}; done
[ -w "${seen:-/}" ]
"""
_MAKE = 'umask 022 && mkdir -p -- "$1" && chown -- "$2:" "$1"'
_MAKING = threading.Lock()
"""Held while a directory is made and not yet given to its owner."""
_Part = tuple[int, int, str, str, str]
"""A directory on the way to a file: user id, mode, owner, group and path."""


def account_refused(name: str, reason: str) -> Refused:
    """Report an operating-system user that cannot run a server on its host."""
    return Refused(
        "account_refused",
        f"the server cannot run as {name}: {reason}",
        hint="set os_user of the node to an ordinary user of that machine, or run shardctl as root",
    )


def directory_refused(path: Path | str, reason: str) -> Refused:
    """Report an error of the system about a server's files."""
    return Refused(
        "directory_refused",
        reason if str(path) in reason else f"{path}: {reason}",
        hint="free disk space, correct the permissions, or give the server another directory",
    )


def directory_owned(path: Path, owner: str, account: str) -> Refused:
    """Report a directory of another user than the one who runs the server."""
    return Refused(
        "directory_owned",
        f"{path} belongs to {owner}, but the server would run as {account}",
        hint=f"run shardctl as root with os_user: {owner} for it, run chown -R {account} {path}, "
        "or give the server another directory",
    )


def server_account(wanted: str | None) -> str | None:
    """Choose who runs a server on this machine: as `account_on`."""
    return account_on(Local(), wanted)


def account_on(host: Host, wanted: str | None) -> str | None:
    """Choose who runs a server on `host`: `wanted` (a node's `os_user`) or the default.

    None means shardctl's login user: only root runs servers as another by default. Raises
    account_refused for an unknown user and for root; SudoRefused where the login user may not
    become `wanted`, and what is raised where the host cannot be reached.
    """
    if isinstance(host, Local) and os.geteuid() != 0:
        if wanted is not None and (why := why_not(wanted)) is not None:
            raise account_refused(wanted, why)
        return None
    names = (wanted,) if wanted is not None else DEFAULTS
    mine, *ids = host.run(["sh", "-c", _IDS, "sh", *names], timeout=_SECONDS).stdout.split()
    if wanted is None and mine != "0":
        return None
    found = [one for one in zip(names, ids, strict=True) if one[1] != "none"]
    if not found:
        raise account_refused(" or ".join(names), "no such user on its host")
    name, number = found[0]
    if number == "0":
        raise account_refused(name, "PostgreSQL does not run as root")
    host.run(["true"], user=name, timeout=_SECONDS)
    return name


def blocked_at(path: Path, account: str | None, host: Host | None = None) -> Path | None:
    """Find the first directory on the way to `path` that `account` may not enter.

    `path` itself counts if it is there; what does not exist blocks no user. All is tried as
    that user on `host`, which is this machine if None, so access lists and mounts are honoured.
    None: the way is free.
    """
    if account is None:
        return None
    way = [*map(str, reversed(path.absolute().parents)), str(path.absolute())]
    argv = ["sh", "-c", _BLOCKED, "sh", *way]
    found = (host or Local()).run(argv, user=account, timeout=_SECONDS).stdout
    return path.__class__(found) if found else None


def changes_file(host: Host, file: Path, *, user: str | None = None) -> str | None:
    """Choose who reads, writes and runs what is where `file` is, for `user`; None: who logs in.

    Root, who would follow a link or run a script that the owner of that directory puts there, is
    that owner instead. Raises folder_unsafe where `user` is root, or root owns the directory and
    others may exchange what is in it.
    """
    parts = _roots_way(host, file, user)
    if not parts:
        return user
    uid, _, owner, *_ = parts[-1]
    if uid != 0 and user is None:
        return owner
    _require_roots(host, parts)
    return user


def changes_folder(host: Host, folder: Path, account: str | None) -> str | None:
    """Choose who makes, renames and deletes in a folder, there or not yet: `account` if it may.

    Else None, who logs in; raises folder_unsafe where that is root, and others may exchange what
    is there.
    """
    if account is None:
        return None
    try:
        host.run(["sh", "-c", _MAY_WRITE, "sh", str(folder)], user=account, timeout=_SECONDS)
    except CommandFailed:
        _require_roots(host, _roots_way(host, folder / "file", None))
        return None
    return account


def _roots_way(host: Host, file: Path, user: str | None) -> list[_Part]:
    """List the directories on the way to a file on a host; none where `user` is not root there."""
    if isinstance(host, Local) and os.geteuid() != 0:
        return []
    argv = ["sh", "-c", _WAY, "sh", str(file)]
    uid, *parts = host.run(argv, user=user, timeout=_SECONDS).stdout.split("\0")
    if uid != "0":
        return []
    found: list[_Part] = []
    for part in filter(None, parts):
        uid, mode, owner, group, path = part.split(" ", 4)
        found.append((int(uid), int(mode, 16), owner, group, path))
    return [one for one in found if stat.S_ISDIR(one[1])]


def _require_roots(host: Host, parts: list[_Part]) -> None:
    """Refuse a way on which others than root may exchange a directory, or what is in the last."""
    owners = inputs.trusted() if isinstance(host, Local) else {0}
    folder = parts[-1][-1]
    for part in parts:
        uid, mode, owner, group, path = part
        # In a sticky directory, only the owner of an entry renames it.
        sticky = mode & stat.S_ISVTX and part is not parts[-1]
        if uid not in owners:
            reason = f"{path} belongs to {owner}"
            hint = (
                f"run `chown root {path}` there, or set os_user in the topology to the user "
                "who owns the directory"
            )
        elif inputs.others_may_write(mode, owner, group) and not sticky:
            reason = f"other users may write to {path}"
            hint = f"run `chmod go-w {path}` there, or use another directory"
        else:
            continue
        raise Refused("folder_unsafe", f"root does not work in {folder}: {reason}", hint=hint)


def way_out(blocked: Path, account: str) -> str:
    """Describe what lets `account` enter `blocked`."""
    return f"allow the user {account} to enter it: chmod o+x {blocked}"


def require_own(folder: Path, account: str | None) -> None:
    """Refuse a directory, there or still to be made, that is not the own one of `account`.

    Raises directory_unreachable, directory_owned, folder_unsafe.
    """
    if account is None:
        return
    require_way(folder, account)
    if not folder.exists():
        changes_folder(Local(), folder.parent, account)
    elif folder.stat().st_uid != pwd.getpwnam(account).pw_uid:
        raise directory_owned(folder, folder.owner(), account)


def require_way(path: Path, account: str | None) -> None:
    """Refuse a place that `account` may not enter; raises directory_unreachable."""
    if account is not None and (blocked := blocked_at(path, account)) is not None:
        raise Refused(
            "directory_unreachable",
            f"{path}: the user {account}, who runs the server, cannot enter {blocked}",
            hint="set an absolute path elsewhere in the topology, such as "
            f"/var/tmp/shardctl/{path.name}; or " + way_out(blocked, account),  # noqa: S108  # only a suggestion
        )


def own(folder: Path, account: str | None) -> None:
    """Make a directory that `account` owns; raises as `require_own`, and directory_refused."""
    here = Local()
    with _MAKING:
        require_own(folder, account)
        try:
            if account is None or folder.exists() or changes_folder(here, folder.parent, account):
                here.run(["mkdir", "-p", "--", str(folder)], user=account)
            else:
                here.run(["sh", "-c", _MAKE, "sh", str(folder), account])
        except CommandFailed as error:
            raise directory_refused(folder, error.reason) from error


@contextlib.contextmanager
def alone(log: Path) -> Iterator[int]:
    """Be the only shardctl that works on a server, by a lock of its log, which is there.

    Gives the descriptor: a process that inherits it keeps the lock. Raises directory_busy,
    directory_refused.
    """
    try:
        held = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise directory_refused(log, error.strerror or str(error)) from error
    with os.fdopen(held):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(
                "directory_busy",
                f"another shardctl is using {log}",
                hint="wait until it ends, then try again",
            ) from error
        yield held


def why_not(name: str) -> str | None:
    """Explain why this process cannot run commands as a user of this machine; None: it can."""
    try:
        number = pwd.getpwnam(name).pw_uid
    except KeyError:
        return "no such user"
    if os.geteuid() not in (0, number):
        return "only root can run commands as another user"
    return None
