"""Which kind of host the machine of a node or a pooler is, and how to reach it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from shardctl.errors import Refused
from shardctl.hosts import accounts, ports
from shardctl.hosts.local import Local
from shardctl.hosts.openssh import SshSettings
from shardctl.hosts.ssh import Ssh
from shardctl.topology.model import Node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.hosts.host import Completed, Host, How
    from shardctl.topology.model import Pooler


def host_of(of: Node | Pooler) -> Host:
    """Give the host on which a node or a pooler runs; nothing is connected yet.

    This machine where the topology has no `ssh` block for it and its address is one from here;
    else another one, by SSH, and what has the same settings shares a connection. Raises
    relative_path of another one, and os_user_refused of this machine; another one refuses a user
    when a command is to run.

    On a pooler's, commands without a user run as its login user or, if that is root, as the owner
    of the directory with the pooler's file of aliases: `accounts.changes_file`. This machine raises
    folder_unsafe, another one when a command is to run.
    """
    machine = machine_of(of)
    if isinstance(of, Node) or of.os_user not in (None, "root"):
        return machine
    owners = _OfPooler(machine, of.databases_file)
    plain = isinstance(machine, Local) and owners.who(of.os_user) is None
    return machine if plain else owners


def machine_of(of: Node | Pooler) -> Host:
    """Give the host as `host_of` does, where commands without a user are the login user's."""
    what = f"{'node' if isinstance(of, Node) else 'pooler'} {of.name}"
    if of.ssh is not None or not ports.is_here(of.host):
        if of.relative:
            key = of.relative[0]
            raise Refused(
                "relative_path",
                f"{what}: {key} is a relative path ({getattr(of, key)}), but {of.host} "
                "is another machine",
                hint="write the absolute path on that machine",
            )
        return Ssh(of.ssh or SshSettings(of.host))
    if of.os_user is not None and (why := accounts.why_not(of.os_user)) is not None:
        raise Refused(
            "os_user_refused",
            f"{what}: cannot run commands as its os_user {of.os_user}: {why}",
            hint=f"correct os_user in the topology, or run shardctl as root or as {of.os_user}",
        )
    return Local()


@dataclass(frozen=True, eq=False)
class _OfPooler:
    """A pooler's host where root may log in, who does nothing in a directory of another user."""

    machine: Host
    file: Path

    def who(self, user: str | None) -> str | None:
        """Give the user who runs a command for `user`; raises folder_unsafe."""
        return self._owner(user) if user in (None, "root") else user

    @functools.cache  # noqa: B019  # it lives as long as its pooler is worked on
    def _owner(self, user: str | None) -> str | None:
        return accounts.changes_file(self.machine, self.file, user=user)

    def run(self, argv: Sequence[str], **how: Unpack[How]) -> Completed:
        """Run `argv` as in `Host.run`."""
        how["user"] = self.who(how.get("user"))
        return self.machine.run(argv, **how)

    def renamed(self, new: Path, path: Path, *, user: str | None = None) -> bool:
        """Rename a file as in `Host.renamed`."""
        return self.machine.renamed(new, path, user=self.who(user))


def is_reached(of: Node | Pooler) -> bool:
    """Return whether commands are run on its host; a managed service's gives only SQL.

    That is another machine's node of which the topology describes nothing but the address.
    """
    if not isinstance(of, Node) or ports.is_here(of.host):
        return True
    return any(one is not None for one in (of.ssh, of.data_directory, of.os_user, of.control))
