"""Which kind of host the machine of a node or a pooler is, and how to reach it."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts import ports
from shardctl.hosts.local import Local
from shardctl.topology.model import Node

if TYPE_CHECKING:
    from shardctl.hosts.host import Host
    from shardctl.topology.model import Pooler


class HostUnreachable(ShardctlError):
    """A machine on which shardctl cannot run commands."""

    def __init__(self, what: str, host: str) -> None:
        super().__init__(
            f"{what}: its host {host} is another machine, and this version has no way there",
            hint="run shardctl on that machine",
        )
        self.host = host


class OsUserRefused(ShardctlError):
    """A user as whom shardctl cannot run commands on a machine."""

    def __init__(self, what: str, user: str, why: str) -> None:
        super().__init__(
            f"{what}: nothing can be run as its os_user {user}: {why}",
            hint=f"correct os_user in the topology, or run shardctl as root or as {user}",
        )
        self.user = user


def host_of(of: Node | Pooler) -> Host:
    """Give the host on which a node or a pooler runs; raises HostUnreachable, OsUserRefused."""
    what = f"{'node' if isinstance(of, Node) else 'pooler'} {of.name}"
    if of.ssh is not None or not ports.is_here(of.host):
        raise HostUnreachable(what, of.host)
    if of.os_user is not None:
        _require_user(what, of.os_user)
    return Local()


def _require_user(what: str, user: str) -> None:
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise OsUserRefused(what, user, "there is no such user") from error
    if os.geteuid() not in (0, account.pw_uid):
        raise OsUserRefused(what, user, "only root may become somebody else")
