"""Server parameters: what moves will need, and what loses data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.checks.check import Check
from shardctl.checks.findings import Finding, Severity
from shardctl.postgres import catalog, queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Place, View
    from shardctl.postgres.catalog import RoleSettings
    from shardctl.topology.model import NodeName

NAME = "settings"
QUERIES = queries.load("shardctl.checks", "settings.sql")

SENDERS = 2
"""A clone takes them: pg_basebackup one for the files and one for the WAL in the meantime."""

SHARDS_AT_ONCE = 50
"""Shards whose relations the lock table should have room for at the same time.

DROP SCHEMA, pg_dump and pg_repack of one shard lock each of its relations once, and keep them
until they have ended. `init`, `migrate` and `prune` do many shards in a transaction, else each
costs a commit of its own, and may fill three fifths of the table: 30 shards, shared by their
sessions. The other two fifths, 20 shards, stay for the application and verify.
"""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What one parameter should be, and what happens otherwise."""

    name: str
    wanted: str
    code: str
    severity: Severity
    why: str
    restart: bool = False


_RULES = (
    _Rule("fsync", "on", "fsync_off", Severity.error, "after a crash the server's data is lost"),
    _Rule(
        "full_page_writes",
        "on",
        "full_page_writes_off",
        Severity.error,
        "a crash can corrupt pages",
    ),
    _Rule(
        "autovacuum",
        "on",
        "autovacuum_off",
        Severity.error,
        "tables bloat, and transaction ids run out",
    ),
    _Rule(
        "track_counts",
        "on",
        "track_counts_off",
        Severity.warning,
        "autovacuum finds no tables to vacuum",
    ),
    _Rule(
        "zero_damaged_pages",
        "off",
        "zero_damaged_pages_on",
        Severity.error,
        "damaged pages are zeroed silently",
    ),
    _Rule(
        "ignore_checksum_failure",
        "off",
        "ignore_checksum_failure_on",
        Severity.error,
        "damaged pages are read as if they were valid",
    ),
    _Rule(
        "hot_standby",
        "on",
        "hot_standby_off",
        Severity.warning,
        "shardctl cannot query the replay position of a clone",
        restart=True,
    ),
)
_NUMBERS = (
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_replication_slots",
    "max_wal_senders",
)
_NAMES = ("wal_level", *_NUMBERS, *(rule.name for rule in _RULES))


@dataclass(frozen=True, slots=True)
class Seen:
    """One node's parameters, and how much of them is in use; `relations` of its largest shard."""

    settings: Mapping[str, str]
    senders: int
    slots: int
    relations: int
    pending: Sequence[str] = ()
    """Parameters that wait for a restart, as ALTER SYSTEM has them, with the values in force."""
    roles: RoleSettings = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Give a parameter that is a number."""
        return int(self.settings[name])

    @property
    def lock_slots(self) -> int:
        """The locks that the lock table was made for."""
        return self.number("max_locks_per_transaction") * (
            self.number("max_connections") + self.number("max_prepared_transactions")
        )


def look(place: Place) -> Seen:
    """Read the parameters and what is in use."""
    settings = place.connection.execute(QUERIES["settings"], {"names": list(_NAMES)}).fetchall()
    senders, slots, relations, pending = queries.one(
        place.connection, QUERIES["used"], {"schemas": list(place.shards)}
    )
    roles = catalog.read_role_settings(place.connection, place.topology.database)
    return Seen(dict(settings), senders, slots, relations, pending, roles)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find parameters that lose data, and those with which no move can be made."""
    for node, seen in view.seen.items():
        for rule in _RULES:
            actual = seen.settings[rule.name]
            if actual != rule.wanted:
                advice = f"run `ALTER SYSTEM SET {rule.name} = {rule.wanted}`, then {_after(rule)}"
                yield Finding(
                    NAME,
                    rule.code,
                    rule.severity,
                    actual=f"{actual}: {rule.why}",
                    expected=rule.wanted,
                    hint=advice,
                    node=node,
                    object=rule.name,
                )
        yield from _moves(node, seen)
        yield from _locks(node, seen)
        yield from _pending(node, seen)
    yield from _roles({node: seen.roles for node, seen in view.seen.items()})


def _after(rule: _Rule) -> str:
    return "restart the server" if rule.restart else "`SELECT pg_reload_conf()`"


def _moves(node: NodeName, seen: Seen) -> Iterator[Finding]:
    level = seen.settings["wal_level"]
    if level == "minimal":
        # It also forbids senders, so these need no finding of their own.
        yield Finding(
            NAME,
            "wal_level_minimal",
            Severity.error,
            actual="minimal: this node cannot be cloned",
            expected="replica or logical",
            hint="run `ALTER SYSTEM SET wal_level = replica`, then restart the server",
            node=node,
            object="wal_level",
        )
        return
    for name, used, wanted, code in (
        ("max_wal_senders", seen.senders, SENDERS, "wal_senders_few"),
        ("max_replication_slots", seen.slots, 1, "replication_slots_few"),
    ):
        most = seen.number(name)
        if most - used < wanted:
            yield Finding(
                NAME,
                code,
                Severity.warning,
                actual=f"{most}, {used} of them in use",
                expected=f"at least {wanted} free, for a move",
                hint=f"run `ALTER SYSTEM SET {name} = {used + wanted}` or a higher value, "
                "then restart the server",
                node=node,
                object=name,
            )


def _locks(node: NodeName, seen: Seen) -> Iterator[Finding]:
    needed = seen.relations * SHARDS_AT_ONCE
    if seen.lock_slots < needed:
        per_transaction = -(-needed * seen.number("max_locks_per_transaction") // seen.lock_slots)
        yield Finding(
            NAME,
            "lock_table_small",
            Severity.warning,
            actual=f"room for {seen.lock_slots} locks; a shard has {seen.relations} relations",
            expected=f"at least {needed}, for {SHARDS_AT_ONCE} shards in one transaction",
            hint=f"run `ALTER SYSTEM SET max_locks_per_transaction = {per_transaction}`, "
            "then restart the server",
            node=node,
            object="max_locks_per_transaction",
        )


def _pending(node: NodeName, seen: Seen) -> Iterator[Finding]:
    for parameter in seen.pending:
        yield Finding(
            NAME,
            "restart_pending",
            Severity.warning,
            actual=f"{parameter} until the server restarts",
            expected="the value in the server's files",
            hint="restart the server (`pg_ctl restart`); or keep the value: run `ALTER "
            f"SYSTEM SET {parameter}` and `SELECT pg_reload_conf()`",
            node=node,
            object=parameter.partition(" = ")[0],
        )


def _roles(of: Mapping[NodeName, RoleSettings]) -> Iterator[Finding]:
    """Find settings with which applications' sessions begin on some nodes only.

    A move takes a role's shards to a node with other settings; `generator` reports missing roles.
    """
    for role in sorted({role for roles in of.values() for role in roles}):
        settings = {node: roles[role] for node, roles in of.items() if role in roles}
        for name in sorted({name for one in settings.values() for name in one}):
            values = {node: one.get(name) for node, one in settings.items()}
            (usual, _), *_ = Counter(values.values()).most_common()
            model = next(node for node, value in values.items() if value == usual)
            for node, value in values.items():
                if value != usual:
                    yield Finding(
                        NAME,
                        "role_setting_differs",
                        Severity.error if name in catalog.DECISIVE else Severity.note,
                        actual=catalog.shown_setting(name, value),
                        expected=f"{catalog.shown_setting(name, usual)}, as on node {model}",
                        hint=catalog.SET_ALIKE,
                        node=node,
                        object=f"{name} of role {role}",
                    )


CHECK = Check(
    NAME,
    "no parameter risks data or prevents moves, and roles have the same ones everywhere",
    judge,
    look,
)
