"""The clone's parameters, where a standby needs as much as its source, and room for locks."""

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
"""The part of the lock table that one transaction may take; applications need the rest."""


def judge_locks(context: Context) -> Iterator[PreflightRefused]:
    """Refuse a source whose lock table has no room for the fence."""
    locks = len(context.plan.schemas) + context.need(shards.look).tables
    settings = context.need(server.look).settings
    yield from lock_table(context.plan.source, settings, locks, "the fence")


def judge_standby(context: Context) -> Iterator[PreflightRefused]:
    """Refuse settings with which the clone would not start or could not claim the shards."""
    node, there = context.target, context.need(server.look)
    given = {name.lower(): value for name, value in node.settings.items()}
    wanted: dict[str, str] = {}
    for name in server.STANDBY_CRITICAL:
        wanted[name] = given.get(name, there.settings[name])
        if not wanted[name].isdecimal() or int(wanted[name]) < there.number(name):
            yield TargetUnfit(
                node.name,
                "settings",
                f"settings: {name} is {wanted[name]}, but the source has {there.settings[name]}: "
                "a standby with less does not start",
                hint=f"set it to {there.settings[name]} or more, or remove it: the clone then has "
                "the source's value",
            )
            wanted[name] = there.settings[name]
    if given.get("wal_level") == "minimal":
        yield TargetUnfit(
            node.name,
            "settings",
            "settings: wal_level is minimal, and a standby does not start with it",
            hint="remove it: the clone then has the source's value",
        )
    renamed = len(context.plan.schemas) + len(planning.leaving(context.topology, context.plan))
    # Dropping a trigger locks it, its table, and what they depend on.
    locks = renamed + 3 * context.need(shards.look).tables
    yield from lock_table(node.name, wanted, locks, "the claim")


def lock_table(
    node: NodeName, settings: Mapping[str, str], locks: int, what: str
) -> Iterator[PreflightRefused]:
    """Refuse a server whose lock table has no room for a transaction with so many locks."""
    sessions = int(settings["max_connections"]) + int(settings["max_prepared_transactions"])
    room = int(int(settings["max_locks_per_transaction"]) * sessions * _SHARE)
    if locks > room:
        yield PreflightRefused(
            f"node {node}",
            "lock_table",
            f"{what} takes {locks:,} locks in one transaction, but its lock table has room "
            f"for {room:,} beside those of applications",
            hint=f"set max_locks_per_transaction = {-(-int(locks / _SHARE) // sessions) + 1} "
            "or more there, then restart it",
        )
