"""What `sql` is to run, statement by statement, and where; nothing is changed by finding out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Misused, together
from shardctl.maintenance import places as placing
from shardctl.postgres import split
from shardctl.postgres.split import without_passwords
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.maintenance.places import Places
    from shardctl.postgres.split import Statement
    from shardctl.topology.model import ShardId, Topology


_TOLD = 1000


def parse(text: str) -> tuple[Statement, ...]:
    """Split a text into its statements; raises statement_invalid.

    >>> [s.text for s in parse("SELECT 1; SELECT ';'")]
    ['SELECT 1', "SELECT ';'"]
    """
    if "\0" in text:
        raise Misused("statement_invalid", "the statement contains a zero byte", hint="remove it")
    found = tuple(split.split(text))
    if not found:
        raise Misused(
            "statement_invalid",
            "there is no statement",
            hint="specify one, such as 'SELECT count(*) FROM photos'",
        )
    for statement in found:
        _require_fit(statement)
    return found


def _require_fit(statement: Statement) -> None:
    where = f"line {statement.line}"
    if statement.text.startswith("\\"):
        raise Misused(
            "statement_invalid",
            f"{where}: {statement.text.split()[0]} is a psql command, not a statement",
            hint="run it in psql: `shardctl route` shows the connection string",
        )
    if (word := statement.ends) is not None:
        raise Misused(
            "statement_invalid",
            f"{where}: {word} is not supported: shardctl runs one transaction in each shard",
            hint="remove it",
        )
    if statement.streams:
        raise Misused(
            "statement_invalid",
            f"{where}: COPY with STDIN or STDOUT is not supported",
            hint="use SELECT with -o tsv, or INSERT",
        )


def for_log(text: str) -> str:
    """Give the text for logs and events: without passwords, and not too long.

    >>> for_log("ALTER ROLE ann PASSWORD 'it''s'; SELECT 1")
    "ALTER ROLE ann PASSWORD '***'; SELECT 1"
    """
    masked = without_passwords(text.strip())
    return masked if len(masked) <= _TOLD else f"{masked[:_TOLD]}..."


COMMAND = "sql"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run where; `shards` None stands for every node instead."""

    topology: Topology
    statements: tuple[Statement, ...]
    places: Places
    shards: tuple[ShardId, ...] | None
    write: bool

    @property
    def for_log(self) -> str:
        """The statements for events and logs."""
        return for_log("; ".join(one.text for one in self.statements))


def plan(topology: Topology, text: str, *, shards: Sequence[ShardId] | None, write: bool) -> Plan:
    """Decide what runs where; asks all nodes, changes nothing.

    Raises statement_invalid, what `places.look` and `of_shards` raise; to write also what
    `Fleet.require_settled` raises, and the errors of nodes that could not be asked.
    """
    found = parse(text)
    chosen = choose(topology, shards, write=write)
    return Plan(topology, found, chosen, None if shards is None else tuple(shards), write)


def choose(topology: Topology, shards: Sequence[ShardId] | None, *, write: bool) -> Places:
    """Find the shards' owners, or with None the nodes; raises as `plan` does."""
    fleet = placing.look(topology, purpose=lock.purpose(COMMAND))
    if write:
        fleet.require_settled()
    found = (
        placing.of_nodes(fleet, ours=write) if shards is None else placing.of_shards(fleet, shards)
    )
    if write and found.left_out:
        raise together(list(dict.fromkeys(error for _, error in found.left_out)))
    return found
