"""What a check is: a look at each node, a judgement over all that was seen, and its findings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from shardctl.postgres import catalog, queries
from shardctl.state import cluster, ledger
from shardctl.state.cluster import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.catalog import Schema
    from shardctl.postgres.connection import Connection
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.ledger import Copy, Entry
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Node, NodeName, PoolerName, ShardId, Topology


QUERIES = queries.load("shardctl.checks", "checks.sql")


@dataclass(frozen=True, slots=True)
class Basics:
    """One node as it is: its server, its own row, its map, its schemas, its journal of moves.

    `state` is None where schema shardctl is missing; `schemas` are all that are no
    system's, so also other nodes' shards, strays and retired copies.
    """

    major: int
    in_recovery: bool
    state: ClusterRow | None
    map: Mapping[ShardId, NodeName]
    schemas: Mapping[str, Schema]
    shadows: tuple[tuple[str, str], ...]
    journal: tuple[Copy, ...]

    def live(self, topology: Topology, node: Node) -> dict[str, ShardId]:
        """Give the shards that the topology gives to the node and that live there."""
        return {
            schema: shard
            for shard in node.shards
            if (schema := topology.schema(shard)) in self.schemas
        }


def read_basics(connection: Connection, topology: Topology, node: Node) -> Basics:
    """Ask one node; the number of questions does not depend on its shards."""
    major, in_recovery = queries.one(connection, QUERIES["server"])
    state = cluster.read(connection) if cluster.is_present(connection) else None
    # A newer journal may have other columns.
    known = state if state is not None and state.format <= FORMAT else None
    return Basics(
        major=major,
        in_recovery=in_recovery,
        state=state,
        map=cluster.read_map(connection) if state else {},
        schemas=catalog.read_schemas(connection, topology.database.app_roles),
        shadows=catalog.read_shadows(connection, topology),
        journal=ledger.copies(connection, topology, node.name, known),
    )


class Severity(StrEnum):
    """How grave a finding is; only errors make `verify` fail (and warnings, with --strict)."""

    error = "error"
    warning = "warning"
    note = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be; node, pooler or shards give the place.

    `code` names the kind within its check and never changes. `object` is a relation, column,
    function, slot, move or file. `hint` names the command that fixes it.
    """

    check: str
    code: str
    severity: Severity
    actual: str
    expected: str
    hint: str
    node: NodeName | None = None
    pooler: PoolerName | None = None
    shards: tuple[ShardId, ...] = ()
    object: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return asdict(self) | {"shards": list(self.shards)}


ERROR, WARNING, NOTE = ((severity,) for severity in Severity)
"""Severities of a rule that has one; added, of one that has several, the usual first."""


class Rule(NamedTuple):
    """What a code stands for: the severities that it can have, and the texts of its findings.

    A `{word}` in a text is what the finding has under that name.
    """

    severities: tuple[Severity, ...]
    actual: str
    expected: str
    hint: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a check, or of a part of it, by code."""

    check: str
    of: Mapping[str, Rule]

    def finding(
        self,
        code: str,
        severity: Severity | None = None,
        *,
        node: NodeName | None = None,
        pooler: PoolerName | None = None,
        shards: Sequence[ShardId] = (),
        object: str | None = None,  # noqa: A002  # the field's name
        **words: object,
    ) -> Finding:
        """Make a finding; the first severity of its rule is the usual one."""
        rule = self.of[code]
        known = words | {"node": node, "pooler": pooler, "object": object}
        actual, expected, hint = (text.format(**known) for text in rule[1:])
        severity = severity or rule.severities[0]
        place = (node, pooler, tuple(shards), object)
        return Finding(self.check, code, severity, actual, expected, hint, *place)

    def ask(self, place: Place, question: str) -> None:
        """Ask a node a question whose rows are findings: code, object, words of the texts."""
        for code, thing, words in place.connection.execute(QUERIES[question]):
            self.found(place, code, object=thing, **words)

    def found(self, place: Place, code: str, **words: Any) -> None:
        """Report what is wrong on a node, whatever else is seen."""
        place.findings.append(self.finding(code, node=place.node.name, **words))


Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Place:
    """One node that is looked at, over a session of its own, read only, in autocommit.

    `shards` are those that the topology gives to the node and whose schema is live there,
    by schema name.
    """

    topology: Topology
    migrations: Sequence[Migration]
    node: Node
    connection: Connection
    basics: Basics
    shards: Mapping[str, ShardId]
    deep: bool
    progress: Progress
    """What a look that takes long reports to, under the node's name."""
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class View(Generic[Seen]):
    """All that was seen, for a judgement; nodes that could not be looked at are not in it.

    `seen` holds what the check's own look gave, by node, in the topology's order.
    """

    topology: Topology
    migrations: Sequence[Migration]
    basics: Mapping[NodeName, Basics]
    seen: Mapping[NodeName, Seen]
    deep: bool
    poolers: Mapping[PoolerName, Any]
    """What was seen of poolers, for the one check that is about them."""
    moves: Sequence[Entry]
    """All moves of the cluster, as all journals together have them, the newest first."""

    def clone(self, node: NodeName) -> bool:
        """Return whether a server is the copy that an open move makes, as it should be.

        Until it has claimed its shards, it describes itself as its source does.
        """
        state = self.basics[node].state
        return (
            state is not None
            and state.cluster == self.topology.cluster
            and any(move.clones(node, state.node) for move in self.moves)
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the registry.

    `judge` turns what was seen into findings, each fault once, and is pure. `look` asks a node a
    fixed number of questions, however many shards it has, for `View.seen`; psycopg.Error may be
    raised. It is None where what every check knows (`Basics`) is enough.
    """

    rules: Rules
    about: str
    judge: Callable[[View[Any]], Iterable[Finding]]
    look: Callable[[Place], Any] | None = None

    @property
    def name(self) -> str:
        """The check's name."""
        return self.rules.check
