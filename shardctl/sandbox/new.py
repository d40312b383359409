"""Writes the topology of a sandbox: local nodes with shards, and spare nodes."""

from __future__ import annotations

import itertools
import os
import secrets
import string
from pathlib import Path

from shardctl.errors import Refused, UsageError
from shardctl.hosts import accounts
from shardctl.topology import ranges

HOST = "127.0.0.1"
_ALIASES = "aliases: [shard, node]"
_FAR = Path("/var/tmp")  # noqa: S108  # every user may enter; the directory's name is random


def write(path: Path, *, shards: int, nodes: int, spare: int, port: int) -> Path:
    """Write the topology to `path`, and return the parent of the data directories.

    That is `.sandbox` beside the file, or a directory in /var/tmp if the servers' user may not
    enter the file's. Raises UsageError, topology_exists and topology_not_written.
    """
    path = path.absolute()
    account = accounts.server_account(None)
    root = None
    if accounts.blocked_at(path.parent, account) is not None:
        root = _FAR / f"shardctl-sandbox-{secrets.token_hex(4)}"
    migrations = (path.parent / "migrations").is_dir()
    text = render(
        shards=shards, nodes=nodes, spare=spare, port=port, data_root=root, migrations=migrations
    )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise Refused(
            "topology_exists",
            f"{path} already exists",
            hint="give another file with --topology, or move this one away",
        ) from error
    except OSError as error:
        raise Refused(
            "topology_not_written",
            f"{path}: {error.strerror or str(error)}",
            hint="give another file with --topology",
        ) from error
    return root or path.parent / ".sandbox"


def render(
    *,
    shards: int,
    nodes: int,
    spare: int,
    port: int,
    cluster: str = "sandbox",
    data_root: Path | None = None,
    migrations: bool = False,
) -> str:
    """Compose the file's text; `data_root` None puts data into `.sandbox` beside the file.

    The pooler has `port`, the nodes the ports after it. Raises UsageError.
    """
    if nodes > shards:
        raise UsageError(
            f"{nodes} nodes need at least {nodes} shards, found --shards {shards}",
            hint=f"give at most --nodes {shards}, and use --spare for nodes without shards",
        )
    root = data_root or ".sandbox"
    spares = f", {spare} spare" if spare else ""
    owned = [*(ranges.of(run) for run in spread(shards, nodes)), *["none"] * spare]
    listed = "".join(
        f"  {node_name(index)}: {{host: {HOST}, port: {port + 1 + index}, shards: {text}, "
        f"data_directory: {root}/{node_name(index)}}}\n"
        for index, text in enumerate(owned)
    )
    migrated = "  migrations: migrations/\n" if migrations else ""
    return f"""\
# A sandbox: {shards} shards on {nodes} local servers{spares}.
# Start the servers with `shardctl sandbox up`, then run `shardctl init`.
cluster: {cluster}

shards:
  count: {shards}

database:
  name: app
  user: postgres
  app_roles: [app]
{migrated}
nodes:
{listed}
poolers:
  p1: {{host: {HOST}, port: {port}, config: {root}/p1/pgbouncer.ini, {_ALIASES}}}
"""


def node_name(index: int) -> str:
    """Return the name of node number `index`, from 0.

    >>> node_name(0), node_name(25), node_name(26)
    ('a', 'z', 'n27')
    """
    letters = string.ascii_lowercase
    return letters[index] if index < len(letters) else f"n{index + 1}"


def spread(shards: int, nodes: int) -> list[range]:
    """Cut shards into contiguous runs that differ by one at most.

    >>> [f"{run[0]}-{run[-1]}" for run in spread(8, 3)]
    ['0-2', '3-5', '6-7']
    """
    size, more = divmod(shards, nodes)
    starts = [index * size + min(index, more) for index in range(nodes + 1)]
    return [range(first, last) for first, last in itertools.pairwise(starts)]
