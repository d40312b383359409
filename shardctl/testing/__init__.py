"""A test fleet for applications: real servers, their own topology and migrations, by pytest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from shardctl.testing.fleet import ShardFleet


def running(
    topology: str | os.PathLike[str],
    *,
    shards: int | None = None,
    nodes: int = 2,
    ports: Sequence[int] | None = None,
) -> AbstractContextManager[ShardFleet]:
    """Run a fleet for an application's topology file, with its migrations, for a `with` block.

    It has all of the file's shards, or `shards` of them, on `nodes` servers of this machine, at
    most as many as shards; `ports` has one for each, otherwise the system chooses free ones. The
    first fleet of a topology and its migrations is made, and kept as a template; others start from
    a copy. Raises ShardctlError if it cannot start, and ValueError for less than one of either.

    >>> with running("topology.yaml") as fleet:  # doctest: +SKIP
    ...     db = ShardedDatabase(fleet.topology)
    """
    # Pytest loads this package in every run on a machine that has shardctl.
    from shardctl.testing import fleet  # noqa: PLC0415

    return fleet.running(Path(topology), shards=shards, nodes=nodes, ports=ports)
