"""The clone's parameters, whether PostgreSQL accepts the node's own, and room for locks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.hosts import scripts
from shardctl.moves import plan as planning
from shardctl.moves.preflight import server, shards, target
from shardctl.moves.refusals import PreflightRefused, TargetUnfit
from shardctl.postgres import configuration

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


_SECONDS = 30.0
_SAID = re.compile(r"(?:LOG|ERROR|FATAL):\s+(.*?)(?: in file \".*\" (?:near )?line \d+.*)?$")
_BESIDE = ("skipping missing configuration file", "configuration file ")


def look_at_parameters(context: Context) -> list[str] | None:
    """Ask PostgreSQL's program; return what it refuses, None where it cannot be asked."""
    settings, machine = context.target.settings, context.need(target.look)
    if not settings:
        return []
    program = context.need(target.programs).program("postgres")
    argv = scripts.argv("parameters", program)
    text = configuration.composed(settings)
    done = machine.host.run(argv, user=machine.account, input=text, timeout=_SECONDS)
    return refusals(done.stdout)


def refusals(said: str) -> list[str] | None:
    r"""Read what the script prints.

    >>> refusals("taken\n"), refusals("")
    ([], None)
    >>> refusals('refused\nx LOG:  unrecognized parameter "a" in file "/tmp/b.conf" line 2\n'
    ...      'x FATAL:  configuration file "/tmp/b.conf" contains errors\n')
    ['unrecognized parameter "a"']
    >>> refusals("refused\n")
    ['PostgreSQL refuses them without a reason']
    """
    first, *lines = said.splitlines() or [""]
    if first != "refused":
        return [] if first == "taken" else None
    reported = [found[1] for line in lines if (found := _SAID.search(line))]
    own = [line for line in reported if not line.startswith(_BESIDE)]
    return own or lines[-1:] or ["PostgreSQL refuses them without a reason"]


def judge_parameters(context: Context) -> Iterator[TargetUnfit]:
    """Refuse parameters with which the clone would not start."""
    for reason in context.need(look_at_parameters) or ():
        yield TargetUnfit(
            context.target.name,
            "settings_refused",
            f"settings: {reason}: the clone would not start",
            hint="correct `settings` of the node in the topology",
        )


def note_parameters(context: Context) -> Iterator[str]:
    """Report that the settings could not be checked."""
    if context.need(look_at_parameters) is None:
        yield f"node {context.target.name}: not checked: whether PostgreSQL accepts its settings"
