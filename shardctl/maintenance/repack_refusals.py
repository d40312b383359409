"""Why a repack is not begun: one noun for each, with what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.postgres import binaries
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shardctl.topology.model import Database, NodeName, ShardId

_SHOWN = 3


class ExtensionMissing(ShardctlError):
    """A node in whose database the extension is not installed."""

    def __init__(self, node: NodeName, database: str, *, available: bool) -> None:
        install = "" if available else "install its package on that host (postgresql-NN-repack), "
        super().__init__(
            f"node {node}: the extension pg_repack is not installed in database {database}",
            hint=f"{install}{'then ' if install else ''}`CREATE EXTENSION pg_repack` in that "
            "database, as a superuser",
        )
        self.node = node
        self.available = available


class ExtensionBroken(ShardctlError):
    """An extension whose library and SQL are not of one version, or whose library is gone."""

    def __init__(self, node: NodeName, what: str) -> None:
        super().__init__(
            f"node {node}: the extension pg_repack cannot be used: {what}",
            hint="`DROP EXTENSION pg_repack`, then `CREATE EXTENSION pg_repack`, while none runs",
        )
        self.node = node


class ProgramMissing(ShardctlError):
    """No program here of the version of a node's extension; it works with no other."""

    def __init__(self, node: NodeName, wanted: str, found: Collection[str]) -> None:
        seen = f"has {', '.join(sorted(found))}" if found else "has no pg_repack"
        super().__init__(
            f"node {node}: its extension is {wanted}, and this machine {seen}",
            hint="install the package of that version here (postgresql-NN-repack), or name the "
            f"directory of its program in ${binaries.VARIABLE}",
        )
        self.node = node
        self.wanted = wanted


class SuperuserNeeded(ShardctlError):
    """A login role that may not repack; in older versions none but a superuser ever may."""

    def __init__(self, node: NodeName, database: Database, version: str, *, may_try: bool) -> None:
        super().__init__(
            f"node {node}: {database.user} is no superuser, and {version} wants one",
            hint="`database.user` in the topology names the role"
            + ("; where it owns the tables, give --no-superuser-check" if may_try else ""),
        )
        self.node = node


class ShardsElsewhere(ShardctlError):
    """Shards that the topology gives to a node which does not have them."""

    def __init__(self, node: NodeName, shards: Sequence[ShardId]) -> None:
        super().__init__(
            f"node {node} does not own shards {ranges.of(shards)}, which the topology gives it",
            hint="the databases say who owns a shard: take the newest topology file; "
            "`shardctl verify` tells more",
        )
        self.node = node
        self.shards = tuple(shards)


class MoveUnfinished(ShardctlError):
    """A move that copies a node: every table that is repacked would be copied once more."""

    def __init__(self, node: NodeName, move: str) -> None:
        super().__init__(
            f"node {node} is part of move {move}, which has not ended",
            hint="a repack would be copied to its clone, too, and hold up its cutover: end it "
            f"first, with `shardctl moves resume {move}` or `abort`",
        )
        self.node = node
        self.move = move


class TablesRefused(ShardctlError):
    """Tables that should be repacked and cannot be; all others were."""

    def __init__(self, refused: Sequence[tuple[NodeName, str, str]]) -> None:
        told = "; ".join(f"node {node}: {name}: {why}" for node, name, why in refused[:_SHOWN])
        more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        tables = "table" if len(refused) == 1 else "tables"
        super().__init__(
            f"{len(refused)} {tables} cannot be repacked: {told}{more}",
            hint="mend that, or leave their shards out",
        )
        self.refused = tuple(refused)
