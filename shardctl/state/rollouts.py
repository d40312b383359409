"""Rollouts: migrations that run in waves of shards, recorded on every node."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from psycopg.types.json import Jsonb

from shardctl.errors import Refused
from shardctl.ids import times
from shardctl.postgres import queries
from shardctl.state.lock import who
from shardctl.topology import ranges
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.migrations import Migration

QUERIES = queries.load("shardctl.state", "rollouts.sql")

State = Literal["running", "waiting", "stopped", "done", "undone", "abandoned"]
OPEN = ("running", "waiting", "stopped")
"""The states in which shards of later waves still lack the files."""
SINCE_FORMAT = 5


@dataclass(frozen=True, slots=True)
class Brakes:
    """What has to hold between waves, and how long it is watched."""

    checks: tuple[str, ...] = ()
    """Queries of the operator that must return true in every changed shard."""
    check_timeout_ms: int = 10_000
    soak_ms: int | None = None
    """How long to wait between waves; None: until an operator continues."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout as a node knows it."""

    id: str
    files: Mapping[str, str]
    """The checksum of each file."""
    waves: tuple[tuple[ShardId, ...], ...]
    brakes: Brakes = field(default_factory=Brakes)
    serial: int = 0
    state: State = "waiting"
    wave: int = 0
    """The wave that began last, from 1."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    """Why it has stopped."""
    who: str = ""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    changed: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def open(self) -> bool:
        """Return whether it still goes on."""
        return self.state in OPEN

    @property
    def last(self) -> bool:
        """Return whether the wave that began last is the last one."""
        return self.wave >= len(self.waves)

    def begun(self) -> frozenset[ShardId]:
        """Give the shards of the waves that have begun."""
        return frozenset(shard for wave in self.waves[: self.wave] for shard in wave)

    def to(self, state: State, **changed: Any) -> Rollout:
        """Give its next state, by this operator."""
        return replace(self, state=state, serial=self.serial + 1, who=who(), **changed)

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "id": self.id,
            "state": self.state,
            "files": sorted(self.files),
            "wave": self.wave,
            "waves": [list(wave) for wave in self.waves],
            "soak_s": None if self.brakes.soak_ms is None else self.brakes.soak_ms / 1000,
            "checks": list(self.brakes.checks),
            "reason": self.reason,
            "who": self.who,
            "began": times.render(int(self.began.timestamp() * 1000)),
            "changed": times.render(int(self.changed.timestamp() * 1000)),
        }


def new(files: Iterable[Migration], waves: Sequence[Sequence[ShardId]], brakes: Brakes) -> Rollout:
    """Begin a rollout, so far only in memory."""
    return Rollout(
        id=secrets.token_hex(4),
        files={one.name: one.checksum for one in files},
        waves=tuple(tuple(wave) for wave in waves),
        brakes=brakes,
        who=who(),
    )


def read(session: Connection, state: ClusterRow | None) -> tuple[Rollout, ...]:
    """Read the newest rollouts that a node knows; its tables must be complete."""
    if state is None or state.format < SINCE_FORMAT:
        return ()
    return tuple(_of_row(row) for row in session.execute(QUERIES["newest"]))


def _of_row(row: Sequence[Any]) -> Rollout:
    name, serial, state, files, waves, wave, options, seen, reason, by, began, changed = row
    return Rollout(
        id=name,
        files=files,
        waves=tuple(_shards(text) for text in waves),
        brakes=Brakes(tuple(options["checks"]), options["check_timeout_ms"], options["soak_ms"]),
        serial=serial,
        state=state,
        wave=wave,
        seen=seen,
        reason=reason,
        who=by,
        began=began,
        changed=changed,
    )


def _shards(text: str) -> tuple[ShardId, ...]:
    return tuple(ShardId(n) for one in ranges.parse(text) for n in range(one.first, one.last + 1))


def write(session: Connection, rollout: Rollout) -> None:
    """Write a rollout's state to a node; one that is newer there stays."""
    brakes = rollout.brakes
    session.execute(
        QUERIES["write"],
        {
            "id": rollout.id,
            "serial": rollout.serial,
            "state": rollout.state,
            "files": Jsonb(dict(rollout.files)),
            "waves": Jsonb([ranges.of(wave) for wave in rollout.waves]),
            "wave": rollout.wave,
            "options": Jsonb(
                {
                    "checks": list(brakes.checks),
                    "check_timeout_ms": brakes.check_timeout_ms,
                    "soak_ms": brakes.soak_ms,
                }
            ),
            "seen": Jsonb(dict(rollout.seen)),
            "reason": rollout.reason,
            "who": rollout.who,
            "began": rollout.began,
        },
    )


def merged(known: Iterable[Iterable[Rollout]]) -> list[Rollout]:
    """Give each rollout as the node knows it that has its newest state, the newest first."""
    found: dict[str, Rollout] = {}
    for one in (rollout for node in known for rollout in node):
        if one.id not in found or found[one.id].serial < one.serial:
            found[one.id] = one
    return sorted(found.values(), key=lambda one: one.began, reverse=True)


def open_one(known: Iterable[Iterable[Rollout]]) -> Rollout | None:
    """Give the rollout that still goes on; there is at most one."""
    return next((one for one in merged(known) if one.open), None)


def still_open(rollout: Rollout) -> Refused:
    """Refuse what would run files beside an open rollout."""
    return Refused(
        "rollout_open",
        f"rollout {rollout.id} of {', '.join(sorted(rollout.files))} is {rollout.state} after "
        f"wave {rollout.wave} of {len(rollout.waves)} (started by {rollout.who})",
        hint="run `shardctl migrate --continue` for the rest, `shardctl migrate rollback FILE` to "
        "undo it, or `shardctl migrate abandon` to end it as it is",
    )
