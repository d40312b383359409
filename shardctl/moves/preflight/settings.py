"""Parameters that the clone will run with, and room for the locks of fence and claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import plan as planning
from shardctl.moves.preflight import server, shards
from shardctl.moves.refusals import PreflightRefused, TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.preflight.subject import Context
    from shardctl.topology.model import NodeName

_SHARE = 3 / 4
"""Of the lock table that the renames of one transaction may take; the rest is applications'."""


def judge_locks(context: Context) -> Iterator[PreflightRefused]:
    """See that the fence finds room for its locks: each renamed schema, each refusing table."""
    locks = len(context.plan.schemas) + context.need(shards.look).tables
    settings = context.need(server.look).settings
    yield from _lock_table(context.plan.source, settings, locks, "the fence")


def judge(context: Context) -> Iterator[PreflightRefused]:
    """Compare what the clone will run with; what its node does not set is the source's."""
    node, there = context.target, context.need(server.look)
    given = {name.lower(): value for name, value in node.settings.items()}
    wanted: dict[str, str] = {}
    for name in server.STANDBY_CRITICAL:
        wanted[name] = given.get(name, there.settings[name])
        if not wanted[name].isdecimal() or int(wanted[name]) < there.number(name):
            yield TargetUnfit(
                node.name,
                "settings",
                f"settings: {name} = {wanted[name]}, and the source has {there.settings[name]}: "
                "a standby with less does not start",
                hint=f"set it to {there.settings[name]} or more, or remove it: it is cloned then",
            )
            wanted[name] = there.settings[name]
    if given.get("wal_level") == "minimal":
        yield TargetUnfit(
            node.name,
            "settings",
            "settings: wal_level = minimal, with which no standby starts",
            hint="remove it: it is cloned then",
        )
    renamed = len(context.plan.schemas) + len(planning.leaving(context.topology, context.plan))
    # Dropping a trigger locks it, its table, and what they depend on.
    locks = renamed + 3 * context.need(shards.look).tables
    yield from _lock_table(node.name, wanted, locks, "the claim")


def _lock_table(
    node: NodeName, settings: Mapping[str, str], locks: int, what: str
) -> Iterator[PreflightRefused]:
    """See that a transaction which takes so many locks finds room for them in this server."""
    sessions = int(settings["max_connections"]) + int(settings["max_prepared_transactions"])
    room = int(int(settings["max_locks_per_transaction"]) * sessions * _SHARE)
    if locks > room:
        yield PreflightRefused(
            f"node {node}",
            "lock_table",
            f"{what} takes {locks} locks in one transaction, and its lock table has room "
            f"for {room} beside the applications'",
            hint=f"set max_locks_per_transaction = {-(-int(locks / _SHARE) // sessions) + 1} "
            "or more there, and restart it",
        )
