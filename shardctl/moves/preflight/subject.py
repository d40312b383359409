"""A subject of preflight, and what all share: the plan, and what was found, asked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar, cast

import psycopg

from shardctl.libpq import reason_of
from shardctl.moves.refusals import PreflightRefused
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardctl.errors import ShardctlError
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

QUERIES = queries.load("shardctl.moves.preflight", "preflight.sql")

Found = TypeVar("Found")


class Place(Enum):
    """Where a subject is looked at; all places at the same time, and `clone` after them."""

    fleet = auto()
    """Many nodes or poolers, or this machine."""
    source = auto()
    """Over the source's session, one subject after the other."""
    target = auto()
    """On the target's host, one subject after the other."""
    clone = auto()
    """On the target's host, for what the source has there too."""


class Unknown(Exception):  # preflight itself catches it, no operator sees it
    """What a subject goes by was not found out; a refusal says why."""


def nothing(_context: Context) -> Iterable[ShardctlError]:
    """Refuse nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the registry.

    `look` asks and changes nothing. The others go by what it and other looks have found: `judge`
    gives refusals, `again` those that may come about until the cutover, `notes` what the plan
    says beside refusals.
    """

    name: str
    about: str
    place: Place
    look: Callable[[Context], object] | None = None
    judge: Callable[[Context], Iterable[ShardctlError]] = nothing
    again: Callable[[Context], Iterable[ShardctlError]] | None = None
    notes: Callable[[Context], Iterable[str]] | None = None


@dataclass(slots=True)
class Context:
    """A move that is looked at; `purpose` names who asks, in every session."""

    topology: Topology
    plan: MovePlan
    purpose: str
    found: dict[Callable[[Context], object], object] = field(default_factory=dict)
    """What the looks gave that did not fail."""
    problems: list[tuple[Place, ShardctlError]] = field(default_factory=list)
    """Why the others failed."""
    unknown: list[str] = field(default_factory=list)
    """Subjects that could not be looked at or judged, for want of what others found."""
    session: Connection = field(init=False)
    """With the source, while that is looked at."""

    @property
    def source(self) -> Node:
        """The node that shards are taken from."""
        return self.topology.nodes[self.plan.source]

    @property
    def target(self) -> Node:
        """The node that they go to."""
        return self.topology.nodes[self.plan.target]

    def ask(self, look: Callable[[Context], Found]) -> Found:
        """Make a look, and keep what it finds."""
        found = self.found[look] = look(self)
        return found

    def of(self, look: Callable[[Context], Found]) -> Found | None:
        """Give what a look found; None where it failed or was not made."""
        return cast("Found | None", self.found.get(look))

    def need(self, look: Callable[[Context], Found]) -> Found:
        """Give what a look found; raises Unknown where it failed or was not made."""
        if look not in self.found:
            raise Unknown
        return cast("Found", self.found[look])


def refused(node: Node, user: str, error: psycopg.Error) -> ShardctlError:
    """Say why a node did not answer a question."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return PreflightRefused(
            f"node {node.name}",
            "rights",
            f"{user} may not look: {reason_of(error)}",
            hint="log in as the role that made the fleet (`database.user`), or a superuser",
        )
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return PreflightRefused(
            f"node {node.name}",
            "locked",
            "somebody holds a table of the shards locked, for longer than a cutover may take",
            hint="find them in pg_locks and let them end, then try again",
        )
    return NodeUnavailable(node.name, f"{node.host}:{node.port}", reason_of(error))
