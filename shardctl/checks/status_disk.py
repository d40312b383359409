"""The file system of a node's data directory, here or on its host."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from shardctl.checks.status_nodes import Disk
from shardctl.errors import Refused
from shardctl.hosts import accounts, files, ports
from shardctl.hosts.reach import host_of

if TYPE_CHECKING:
    from shardctl.topology.model import Node


def measure(node: Node) -> Disk | None:
    """Measure the file system of a node's data directory; None where no file gives it.

    Other tablespaces, and a WAL directory elsewhere, are not looked at. Raises disk_unknown, and
    what its host raises.
    """
    if node.data_directory is None:
        return None
    if node.ssh is None and ports.is_here(node.host):
        try:
            usage = shutil.disk_usage(node.data_directory)
        except OSError as error:
            raise Refused("disk_unknown", f"{node.data_directory}: {error.strerror}") from error
        return Disk(free_bytes=usage.free, total_bytes=usage.total)
    host = host_of(node)
    user = accounts.account_on(host, node.os_user)
    total, free = files.disk(host, node.data_directory, user=user)
    return Disk(free_bytes=free, total_bytes=total)
