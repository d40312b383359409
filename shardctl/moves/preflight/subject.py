"""A subject of preflight, and the context that all share: the plan, and what looks found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Literal, TypeVar, cast

import psycopg

from shardctl.libpq import reason_of
from shardctl.moves.plan import PreflightRefused
from shardctl.postgres import queries
from shardctl.postgres.connection import NodeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

QUERIES = queries.load("shardctl.moves.preflight", "preflight.sql")

Found = TypeVar("Found")


class Place(Enum):
    """Where a subject looks; all places at the same time, and `clone` and `member` after them."""

    fleet = auto()
    """Many nodes or poolers, or this machine."""
    source = auto()
    """Over the source's session, one subject after the other."""
    target = auto()
    """On the target's host, one subject after the other."""
    clone = auto()
    """On the target's host, with findings from the source."""
    trial = auto()
    """On the target's host, once nothing else refuses the move."""
    member = auto()
    """Over a session with the target, which serves already, with findings from the source."""


class Kind(Enum):
    """What is looked at differs by these."""

    clone = auto()
    stream = auto()
    reverse = auto()
    """A stream without a copy, which gives shards back."""


class Unknown(Exception):  # preflight itself catches it, no operator sees it
    """A finding that a subject needs is missing; another refusal reports why."""


Before = Literal["copy", "cutover"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at in one place.

    `look` queries and changes nothing. `judge` uses what it and other looks have found: it returns
    refusals, and as texts what the plan reports besides.
    """

    place: Place
    look: Callable[[Context], object] | None = None
    judge: Callable[[Context], Iterable[ShardctlError | str]] = lambda _: ()
    of: Sequence[Kind] = tuple(Kind)
    again: Before | None = None
    """Before what it is looked at and judged again; `copy` is of streams."""


@dataclass(slots=True)
class Context:
    """A move under preflight; `purpose` is the application_name of every session."""

    topology: Topology
    plan: MovePlan
    purpose: str
    found: dict[Callable[[Context], object], object] = field(default_factory=dict)
    """The results of looks that succeeded."""
    problems: list[ShardctlError] = field(default_factory=list)
    """The errors of the others."""
    unknown: list[Subject] = field(default_factory=list)
    """Those that could not look or judge, because findings of others are missing."""
    session: Connection = field(init=False)
    """The session with the source, while its subjects look."""
    member: Connection = field(init=False)
    """The session with a target that serves already, while its subjects look."""

    @property
    def source(self) -> Node:
        """The node that the shards leave."""
        return self.topology.nodes[self.plan.source]

    @property
    def target(self) -> Node:
        """The node that gets the shards."""
        return self.topology.nodes[self.plan.target]

    @property
    def streams(self) -> bool:
        """Whether rows go to a server that serves already, and no server is cloned."""
        return self.plan.streams

    def ask(self, look: Callable[[Context], Found]) -> Found:
        """Run a look, and keep what it finds."""
        found = self.found[look] = look(self)
        return found

    def of(self, look: Callable[[Context], Found]) -> Found | None:
        """Return what a look found; None where it failed or did not run."""
        return cast("Found | None", self.found.get(look))

    def need(self, look: Callable[[Context], Found]) -> Found:
        """Return what a look found; raises Unknown where it failed or did not run."""
        if look not in self.found:
            raise Unknown
        return cast("Found", self.found[look])


def refused(node: Node, user: str, error: psycopg.Error) -> ShardctlError:
    """Turn a node's error into a refusal."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return PreflightRefused(
            f"node {node.name}",
            "rights",
            f"{user} may not run a check: {reason_of(error)}",
            hint="set `database.user` to the role that ran `shardctl init`, or to a superuser",
        )
    return NodeUnavailable(node, error)
