"""Which operating-system user runs a server here, and where that user may go."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from pathlib import Path

DEFAULTS = ("postgres", "nobody")
"""Who runs servers for root, in order of preference."""


class AccountRefused(ShardctlError):
    """An operating-system user that cannot run a server here."""

    def __init__(self, name: str, reason: str, hint: str) -> None:
        super().__init__(f"the server cannot run as {name}: {reason}", hint=hint)
        self.name = name


def server_account(wanted: str | None) -> str | None:
    """Choose who runs a server: `wanted` (a node's `os_user`) or the default.

    None means oneself: whoever is not root runs servers as nobody else. Raises
    AccountRefused for an unknown user, for root, and for somebody else.
    """
    if os.geteuid() != 0:
        if wanted is not None and wanted != pwd.getpwuid(os.geteuid()).pw_name:
            raise AccountRefused(
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
    reason = "PostgreSQL refuses root" if _exists(name) else "there is no such user"
    raise AccountRefused(
        name, reason, "name an ordinary user of this machine as os_user of the node"
    )


def blocked_at(path: Path, account: str | None) -> Path | None:
    """Find the first directory on the way to `path` that `account` may not enter.

    `path` itself counts if it is there; what is not there yet blocks nobody. Each one is
    tried as that user, so access lists and mounts are honoured. None: the way is free.
    """
    if account is None:
        return None
    way = [part for part in (*reversed(path.absolute().parents), path) if os.path.lexists(part)]
    if not way or _enters(way[-1], account):
        return None
    return next((part for part in way if not _enters(part, account)), None)


def way_out(blocked: Path, account: str) -> str:
    """Say what lets `account` enter `blocked`."""
    return f"let the user {account} pass: chmod o+x {blocked}"


def _enters(path: Path, account: str) -> bool:
    try:
        Local().run(["test", "-x", str(path)], user=account)
    except CommandFailed:
        return False
    return True


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
