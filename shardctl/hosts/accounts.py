"""Which operating-system user runs a server on a host, and where that user may go."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.hosts.local import Local

if TYPE_CHECKING:
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


def account_refused(name: str, reason: str, hint: str) -> Refused:
    """Report an operating-system user that cannot run a server on its host."""
    return Refused("account_refused", f"the server cannot run as {name}: {reason}", hint=hint)


def server_account(wanted: str | None) -> str | None:
    """Choose who runs a server: `wanted` (a node's `os_user`) or the default.

    None means shardctl's own user: only root runs servers as another. Raises
    account_refused for an unknown user, for root, and for another session.
    """
    if os.geteuid() != 0:
        if wanted is not None and wanted != pwd.getpwuid(os.geteuid()).pw_name:
            raise account_refused(
                wanted,
                f"you are {pwd.getpwuid(os.geteuid()).pw_name}",
                "remove os_user from the node, or run shardctl as root",
            )
        return None
    for name in (wanted,) if wanted is not None else DEFAULTS:
        if _exists(name):
            if pwd.getpwnam(name).pw_uid == 0:
                break
            return name
    name = wanted or " or ".join(DEFAULTS)
    reason = "PostgreSQL does not run as root" if _exists(name) else "no such user"
    raise account_refused(
        name, reason, "set os_user of the node to an ordinary user of this machine"
    )


def account_on(host: Host, wanted: str | None) -> str | None:
    """Choose who runs a server on `host`, as `server_account` does here.

    None means shardctl's login user. Raises account_refused; SudoRefused where that one may
    not become `wanted`, and what is raised where the host cannot be reached.
    """
    if isinstance(host, Local):
        return server_account(wanted)
    names = (wanted,) if wanted is not None else DEFAULTS
    mine, *ids = host.run(["sh", "-c", _IDS, "sh", *names], timeout=_SECONDS).stdout.split()
    if wanted is None and mine != "0":
        return None
    there = {name: uid for name, uid in zip(names, ids, strict=True) if uid != "none"}
    name = next(iter(there), None)
    if name is None or there[name] == "0":
        raise account_refused(
            name or " or ".join(names),
            "PostgreSQL does not run as root" if name else "no such user on its host",
            "set os_user of the node to an ordinary user of that machine",
        )
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


def way_out(blocked: Path, account: str) -> str:
    """Describe what lets `account` enter `blocked`."""
    return f"allow the user {account} to enter it: chmod o+x {blocked}"


def make_way(path: Path, account: str | None) -> bool:
    """Make a directory and its parents, which `account` may enter; return if it is new."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        if account is not None:
            held = os.open(one, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(held, 0o755)
            finally:
                os.close(held)
    return path in missing


def give(what: Path | int, account: str | None) -> None:
    """Let `account` own a file, or an open one, and never what a link leads to; None: as it is."""
    if account is not None:
        owner = pwd.getpwnam(account)
        os.chown(what, owner.pw_uid, owner.pw_gid, follow_symlinks=isinstance(what, int))


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
