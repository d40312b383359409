"""Server parameters: what moves will need, and what loses data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks.check import ERROR, NOTE, QUERIES, WARNING, Check, Rule, Rules, Severity
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from shardctl.checks.check import Finding, Place, View
    from shardctl.postgres.catalog import RoleSettings
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

SENDERS = 2
"""A clone takes them: pg_basebackup one for the files and one for the WAL in the meantime."""

SHARDS_AT_ONCE = 50
"""Shards whose relations the lock table should have room for at the same time.

DROP SCHEMA, pg_dump and pg_repack of one shard lock each of its relations once, and keep them
until they have ended. `init`, `migrate` and `prune` do many shards in a transaction, else each
costs a commit of its own, and may fill three fifths of the table: 30 shards, shared by their
sessions. The other two fifths, 20 shards, stay for the application and verify.
"""


def _set(
    severities: tuple[Severity, ...], actual: str, wanted: str, *, restart: bool = False
) -> Rule:
    """Make the rule of a parameter that has one right value."""
    after = "restart the server" if restart else "`SELECT pg_reload_conf()`"
    hint = f"run `ALTER SYSTEM SET {{object}} = {wanted}`, then {after}"
    return Rule(severities, actual, wanted, hint)


_FEW = Rule(
    WARNING,
    "{most}, {used} of them in use",
    "at least {free} free, for a move",
    "run `ALTER SYSTEM SET {object} = {least}` or a higher value, then restart the server",
)
RULES = Rules(
    "settings",
    {
        "fsync_off": _set(ERROR, "off: after a crash the server's data is lost", "on"),
        "full_page_writes_off": _set(ERROR, "off: a crash can corrupt pages", "on"),
        "autovacuum_off": _set(ERROR, "off: tables bloat, and transaction ids run out", "on"),
        "track_counts_off": _set(WARNING, "off: autovacuum finds no tables to vacuum", "on"),
        "zero_damaged_pages_on": _set(ERROR, "on: damaged pages are zeroed silently", "off"),
        "ignore_checksum_failure_on": _set(
            ERROR, "on: damaged pages are read as if they were valid", "off"
        ),
        "hot_standby_off": _set(
            WARNING,
            "off: shardctl cannot query the replay position of a clone",
            "on",
            restart=True,
        ),
        "wal_level_minimal": Rule(
            ERROR,
            "minimal: this node cannot be cloned",
            "replica or logical",
            "run `ALTER SYSTEM SET wal_level = replica`, then restart the server",
        ),
        "wal_senders_few": _FEW,
        "replication_slots_few": _FEW,
        "lock_table_small": Rule(
            WARNING,
            "room for {slots} locks; a shard has {relations} relations",
            "at least {needed}, for {at_once} shards in one transaction",
            "run `ALTER SYSTEM SET max_locks_per_transaction = {least}`, then restart the server",
        ),
        "restart_pending": Rule(
            WARNING,
            "{object} = {value} until the server restarts",
            "the value in the server's files",
            "restart the server (`pg_ctl restart`); or keep the value: run `ALTER SYSTEM SET "
            "{object} = {value}` and `SELECT pg_reload_conf()`",
        ),
        "role_setting_differs": Rule(
            NOTE + ERROR,
            "{actual}",
            "{usual}, as on node {model}",
            catalog.SET_ALIKE,
        ),
    },
)


class Seen(NamedTuple):
    """What is wrong with one node's parameters, as code, parameter and words; and of its roles."""

    found: Sequence[tuple[str, str, Mapping[str, Any]]]
    roles: RoleSettings


def unfit(session: Connection, schemas: Sequence[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Let the server say which parameters are wrong: code, parameter and words."""
    given = {"senders": SENDERS, "shards": SHARDS_AT_ONCE, "schemas": list(schemas)}
    return session.execute(QUERIES["unfit_settings"], given).fetchall()


def look(place: Place) -> Seen:
    """Let the server say what is wrong, and read with what roles' sessions begin."""
    return Seen(
        unfit(place.connection, list(place.shards)),
        catalog.read_role_settings(place.connection, place.topology.database),
    )


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find parameters that lose data, and those with which no move can be made."""
    for node, seen in view.seen.items():
        for code, name, words in seen.found:
            yield RULES.finding(code, node=node, object=name, **words)
    yield from _roles({node: seen.roles for node, seen in view.seen.items()})


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
                    yield RULES.finding(
                        "role_setting_differs",
                        Severity.error if name in catalog.DECISIVE else Severity.note,
                        node=node,
                        object=f"{name} of role {role}",
                        actual=catalog.shown_setting(name, value),
                        usual=catalog.shown_setting(name, usual),
                        model=model,
                    )


CHECK = Check(
    RULES,
    "no parameter risks data or prevents moves, and roles have the same ones everywhere",
    judge,
    look,
)
