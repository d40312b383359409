"""Repack: which tables of which shards are written again, in which order, and which cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardctl.errors import Refused, together
from shardctl.maintenance import repack_look, repack_program
from shardctl.meter import size
from shardctl.postgres import binaries
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardctl.maintenance.repack_look import Table, View
    from shardctl.maintenance.repack_program import Settings
    from shardctl.postgres.repack_left import Leftover
    from shardctl.topology.model import NodeName, Topology

COMMAND = repack_look.COMMAND

Verdict = Literal["repack", "refused", "little", "recent", "unknown"]
"""`little` bloat, a `recent` repack and an `unknown` bloat are reasons to leave a table out."""

ROOM = 2
"""How much free disk a table takes while it is repacked, in times its size with all indexes."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What is chosen, and how it is done; `min_bloat` is a share from 0 to 1.

    A table that was repacked less than `recent_s` ago is left out. `jobs` are tables at a time
    on each node.
    """

    min_bloat: float
    recent_s: float
    jobs: int
    settings: Settings


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table with its verdict; `why_not` is None unless it is refused."""

    node: NodeName
    table: Table
    verdict: Verdict
    why_not: str | None = None

    @property
    def name(self) -> str:
        """The table's name with its schema, for people."""
        return f"{self.table.schema}.{self.table.name}"

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, as planned."""
        table = self.table
        return {
            "node": self.node,
            "shard": table.shard,
            "schema": table.schema,
            "table": table.name,
            "size_bytes": table.size_bytes,
            "bloat_bytes": table.bloat_bytes,
            "index": table.index,
            "state": "planned" if self.why_not is None else "refused",
            "reason": self.why_not,
            "after_bytes": None,
        }


@dataclass(frozen=True, slots=True)
class Means:
    """What fits a node: the program, its version, the server's."""

    program: str
    version: str
    major: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repack does: the chosen tables, worst first, and what is in its way."""

    candidates: tuple[Candidate, ...]
    leftovers: Mapping[NodeName, tuple[Leftover, ...]]
    means: Mapping[NodeName, Means]
    notes: tuple[tuple[NodeName, str], ...]
    options: Options

    @property
    def chosen(self) -> list[Candidate]:
        """The tables to repack, in order."""
        return [one for one in self.candidates if one.verdict == "repack"]

    @property
    def refused(self) -> list[Candidate]:
        """The tables that should be repacked and cannot be."""
        return [one for one in self.candidates if one.verdict == "refused"]

    def left_out(self, verdict: Verdict) -> int:
        """Count the tables of another verdict."""
        return sum(one.verdict == verdict for one in self.candidates)

    @property
    def nodes(self) -> list[NodeName]:
        """The nodes on which there is something to do."""
        busy = {one.node for one in self.chosen}
        return [node for node in self.means if node in busy]


def program_missing(node: NodeName, wanted: str, found: Collection[str]) -> Refused:
    """Report a node's extension with whose version no program here works."""
    seen = f"has {', '.join(sorted(found))}" if found else "has no pg_repack"
    return Refused(
        "program_missing",
        f"node {node}: the pg_repack extension is version {wanted}; this machine {seen}",
        hint="install the package of that version on this machine (postgresql-NN-repack), "
        f"or set ${binaries.VARIABLE} to the directory of its program",
    )


def tables_refused(refused: Sequence[tuple[NodeName, str, str]]) -> Refused:
    """Report tables that cannot be repacked; the rest were."""
    listed = "; ".join(f"node {node}: {name}: {why}" for node, name, why in refused[:_SHOWN])
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    tables = "table" if len(refused) == 1 else "tables"
    return Refused(
        "tables_refused",
        f"{len(refused)} {tables} cannot be repacked: {listed}{more}",
        hint="fix these tables, or leave out their shards",
    )


def plan(topology: Topology, shards: Iterable[int], options: Options) -> Plan:
    """Look at the shards' tables and judge each; changes nothing.

    Raises what `repack_look.look` raises, and program_missing.
    """
    views = repack_look.look(
        topology,
        frozenset(shards),
        superuser_check=options.settings.superuser_check,
        purpose=lock.purpose(COMMAND),
    )
    found = repack_program.find()
    missing = [
        program_missing(node, view.version, found)
        for node, view in views.items()
        if view.version not in found
    ]
    if missing:
        raise together(missing)
    return Plan(
        candidates=tuple(judge(views, options)),
        leftovers={node: view.leftovers for node, view in views.items()},
        means={node: Means(found[v.version], v.version, v.major) for node, v in views.items()},
        notes=tuple((node, note) for node, view in views.items() for note in view.notes),
        options=options,
    )


def judge(views: Mapping[NodeName, View], options: Options) -> list[Candidate]:
    """Give every table its verdict; those with the most estimated bloat come first."""
    found = [
        _judged(node, table, view, options) for node, view in views.items() for table in view.tables
    ]
    return sorted(found, key=lambda one: (-(one.table.bloat_bytes or 0), one.name))


def _judged(node: NodeName, table: Table, view: View, options: Options) -> Candidate:
    if table.done_s is not None and table.done_s < options.recent_s:
        return Candidate(node, table, "recent")
    if table.locked:
        return Candidate(
            node, table, "refused", "another session holds a lock on it, or waits for one"
        )
    if options.min_bloat > 0:
        if table.bloat_bytes is None:
            return Candidate(node, table, "unknown")
        if not table.bloat_bytes or table.bloat_bytes < options.min_bloat * table.size_bytes:
            return Candidate(node, table, "little")
    why = _why_not(table, view)
    return Candidate(node, table, "repack" if why is None else "refused", why)


def _why_not(table: Table, view: View) -> str | None:
    """Explain why pg_repack would refuse a table, or fill the disk; None: it would not."""
    if any(one.oid == table.oid for one in view.leftovers):
        return "a killed pg_repack left a trigger or tables of it, which you have to drop first"
    if not table.permanent:
        return "unlogged tables cannot be repacked"
    if not table.keyed:
        return "it needs a primary key, or a unique index on columns that are NOT NULL"
    need = ROOM * table.size_bytes
    if view.free_bytes is not None and need > view.free_bytes:
        free = size(view.free_bytes)
        return f"repacking it needs {size(need)} of free disk, and the node has {free}"
    return None
