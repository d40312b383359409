"""Owners in the topology file beside those in the databases' maps; pure but for `write`."""

from __future__ import annotations

import fcntl
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardctl.errors import Refused, ShardctlError, together
from shardctl.maintenance.places import move_unfinished
from shardctl.provision import topology_file
from shardctl.provision.maps import map_unwritten
from shardctl.state import ledger
from shardctl.topology import edit, loader, ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from shardctl.maintenance.places import Fleet
    from shardctl.topology.model import NodeName, ShardId, Topology

COMMAND = "topology pull"


@dataclass(frozen=True, slots=True)
class Differing:
    """Shards whose owner is one node here and another one there; None: no row of the map."""

    shards: tuple[ShardId, ...]
    first: NodeName | None
    second: NodeName | None

    @property
    def listed(self) -> str:
        """The shards as ranges for people."""
        return topology_file.spaced(ranges.of(self.shards))


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two nodes whose maps differ, and in what."""

    nodes: tuple[NodeName, NodeName]
    versions: tuple[int, int]
    differing: tuple[Differing, ...]

    @property
    def error(self) -> Refused:
        """The disagreement as an error that names both nodes."""
        (one, other), versions = self.nodes, self.versions
        parts = "; ".join(
            f"{each.listed}: {each.first or 'no node'} on {one}, {each.second or 'no node'} on "
            f"{other}"
            for each in self.differing
        )
        return Refused(
            "owners_disputed",
            f"the maps of node {one} (version {versions[0]}) and node {other} (version "
            f"{versions[1]}) disagree about the owners of shards {parts}",
            hint="run `shardctl moves list`: an unfinished move explains it, and `shardctl moves "
            "resume` ends it; `shardctl verify --check map` shows each node's map",
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """The file's owners (`first` of each difference) and the map's (`second`).

    `owners` are those of the newest map, empty where nodes disagree or none has a map.
    """

    topology: Topology
    version: int
    owners: Mapping[ShardId, NodeName]
    differences: tuple[Differing, ...]
    disagreements: tuple[Disagreement, ...]

    @property
    def same(self) -> bool:
        """Whether file and maps agree."""
        return not self.differences and not self.disagreements

    def after(self) -> dict[NodeName, tuple[ShardId, ...]]:
        """Give the shards, by the map, of each node of the file whose line is to be changed."""
        owned: dict[NodeName, list[ShardId]] = defaultdict(list)
        for shard, node in sorted(self.owners.items()):
            owned[node].append(shard)
        nodes = self.topology.nodes.values()
        return {n.name: tuple(owned[n.name]) for n in nodes if tuple(owned[n.name]) != n.shards}

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, but for its problems."""
        return {
            "format": 1,
            "cluster": self.topology.cluster,
            "file": str(self.topology.path),
            "map_version": self.version or None,
            "same": self.same,
            "differences": [
                {"shards": list(one.shards), "file": one.first, "map": one.second}
                for one in self.differences
            ],
            "disagreements": [
                {
                    "nodes": [
                        {"node": node, "map_version": version}
                        for node, version in zip(one.nodes, one.versions, strict=True)
                    ],
                    "differences": [
                        {"shards": list(each.shards), "owners": [each.first, each.second]}
                        for each in one.differing
                    ],
                }
                for one in self.disagreements
            ],
        }


def compare(fleet: Fleet) -> Compared:
    """Compare the file with the maps of all nodes that have one; raises map_unwritten."""
    topology = fleet.topology
    maps = {name: view for name, view in fleet.views.items() if view.version}
    if not maps:
        raise map_unwritten()
    newest, view = max(maps.items(), key=lambda item: item[1].version)
    every = sorted(topology.owners())
    disagreements = tuple(
        Disagreement((newest, name), (view.version, other.version), tuple(differing))
        for name, other in maps.items()
        if (differing := _differing(every, view.map, other.map))
    )
    if disagreements:
        return Compared(topology, view.version, {}, (), disagreements)
    found = _differing(every, topology.owners(), view.map)
    return Compared(topology, view.version, view.map, tuple(found), ())


def _differing(
    shards: Iterable[ShardId],
    one: Mapping[ShardId, NodeName],
    other: Mapping[ShardId, NodeName],
) -> list[Differing]:
    pairs: dict[tuple[NodeName | None, NodeName | None], list[ShardId]] = defaultdict(list)
    for shard in shards:
        if one.get(shard) != other.get(shard):
            pairs[one.get(shard), other.get(shard)].append(shard)
    return [Differing(tuple(found), *nodes) for nodes, found in pairs.items()]


def unread(fleet: Fleet, compared: Compared) -> list[ShardctlError]:
    """List the errors of nodes with shards, by the file or the map, that could not be read."""
    owning = {*compared.owners.values(), *(node.name for node in fleet.topology.owning())}
    return [error for name, error in fleet.unasked.items() if name in owning]


def require_settled(fleet: Fleet, compared: Compared) -> None:
    """See that the file may get the map's owners.

    Every node with shards has to be readable, all maps have to agree and be whole, and no move may
    be open: it writes into the file itself. Raises the errors of the nodes, owners_disputed,
    owner_unknown and move_unfinished, or Problems of several.
    """
    problems = unread(fleet, compared)
    problems += [one.error for one in compared.disagreements]
    entries = ledger.entries(copy for view in fleet.views.values() for copy in view.journal)
    problems += [move_unfinished(one) for one in entries if one.open]
    for one in compared.differences:
        if one.second is None:
            problems.append(
                Refused(
                    "owners_disputed",
                    f"the map has no rows of shards {one.listed}",
                    hint="run `shardctl verify --check map` to see each node's map",
                )
            )
        elif one.second not in fleet.topology.nodes:
            problems.append(
                Refused(
                    "owner_unknown",
                    f"the map gives shards {one.listed} to node {one.second}, which is not in "
                    f"{fleet.topology.path}",
                    hint=f"add node {one.second} to the file with `shards: none`, then run the "
                    "command again",
                )
            )
    if problems:
        raise together(problems)


@dataclass(frozen=True, slots=True)
class Edit:
    """The file before and after; `values` are the new `shards:` of nodes."""

    path: Path
    before: str
    after: str
    values: Mapping[NodeName, str]


def plan(compared: Compared) -> Edit:
    """Edit the text of the file in memory; raises file_not_edited, file_changed."""
    topology, owned = compared.topology, compared.after()
    values = {name: topology_file.value(shards) for name, shards in owned.items()}
    path = topology.path
    try:
        before = topology_file.text(path)
        if loader.parse(before.encode(), path) != topology:
            raise _changed(path)
        after = edit.replace_scalars(
            before, {("nodes", name, "shards"): value for name, value in values.items()}
        )
        if loader.parse(after.encode(), path).owners() != compared.owners:
            raise _not_edited(path, "the edited file would have other owners", values)
        why = topology_file.unwritable(path.resolve(strict=True), len(after.encode()))
    except (edit.ScalarNotEditable, loader.TopologyInvalid) as error:
        raise _not_edited(path, error.message, values) from error
    except OSError as error:
        raise _not_edited(path, error.strerror or str(error), values) from error
    if why:
        raise _not_edited(path, why, values)
    return Edit(path, before, after, values)


def write(planned: Edit) -> None:
    """Write the file, unless its text is another one than that of the plan.

    Raises file_changed, file_not_edited, FileRefused.
    """
    path = planned.path
    try:
        with path.open("rb") as held:
            # Of two operators, the second sees the text of the first.
            fcntl.flock(held, fcntl.LOCK_EX)
            if topology_file.text(path) != planned.before:
                raise _changed(path)
            topology_file.replace(path, planned.after)
    except OSError as error:
        raise _not_edited(path, error.strerror or str(error), planned.values) from error


def _changed(path: Path) -> Refused:
    return Refused(
        "file_changed",
        f"{path} changed after this command read it: nothing was written",
        hint="run the command again to see the difference to the new file",
    )


def _not_edited(path: Path, why: str, values: Mapping[NodeName, str]) -> Refused:
    lines = ", ".join(f"nodes.{name}.shards: {value}" for name, value in values.items())
    return Refused(
        "file_not_edited",
        f"{path} was not changed: {why}",
        hint=f"write this into the file by hand: {lines}",
    )
