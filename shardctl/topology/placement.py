"""Rules of place: no shard, address, folder or file has two owners, and no shard has none."""

from __future__ import annotations

import os
import re
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.topology import fields, ranges
from shardctl.topology.problems import Finding, Loc, shown
from shardctl.topology.rules import dig, section, tried

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_PARTS = 10
_STRAY = re.compile(" *[0-9]+( *- *[0-9]+)? *")


class _Owned(NamedTuple):
    first: int
    last: int
    node: str


def ownership(data: Any) -> Iterator[Finding]:
    """Find shards that do not exist, have two owners or none; ranges are never expanded."""
    count = tried(fields.count, dig(data, "shards", "count"))
    nodes = section(data, "nodes")
    owned: list[_Owned] = []
    complete = bool(nodes)
    for name in nodes:
        loc = ("nodes", name, "shards")
        found = tried(fields.shard_ranges, dig(data, *loc))
        # {shards: 0-1,3} without quotes is two keys, and the 3 is not lost but misplaced.
        stray = any(_STRAY.fullmatch(key) for key in section(data, "nodes", name))
        if found is None or stray:
            complete = False
        if found is None:
            continue
        merged = ranges.merge(found)
        if sum(r.last - r.first + 1 for r in found) > _size(merged):
            yield Finding(loc, f"{_brief(_twice(found))} is listed twice")
        inside, outside = _split(merged, count)
        if outside:
            yield Finding(
                loc, f"{_brief(outside)} is outside 0-{(count or 0) - 1} (shards.count: {count})"
            )
        for other, shards in _claim(owned, inside, name).items():
            yield Finding(
                loc, f"node {other} also has {_brief(shards)}; a shard belongs to one node"
            )
    # Where a node's list cannot be read, what is missing is unknown.
    if complete and count is not None:
        free = _gaps(owned, count)
        if free:
            yield Finding(("nodes",), f"no node owns {_brief(free)}", "key")


def _size(merged: Iterable[ranges.Range]) -> int:
    return sum(r.last - r.first + 1 for r in merged)


def _brief(found: Iterable[ranges.Range]) -> str:
    parts = ranges.render(found).split(",")
    more = f" and {len(parts) - _MAX_PARTS} more" if len(parts) > _MAX_PARTS else ""
    return ",".join(parts[:_MAX_PARTS]) + more


def _twice(found: Iterable[ranges.Range]) -> list[ranges.Range]:
    twice = []
    reach = -1
    for first, last in sorted(found):
        if first <= reach:
            twice.append(ranges.Range(first, min(last, reach)))
        reach = max(reach, last)
    return twice


def _split(
    merged: Iterable[ranges.Range], count: int | None
) -> tuple[list[ranges.Range], list[ranges.Range]]:
    """Part ranges into those below `count` and the rest; None has no limit."""
    inside: list[ranges.Range] = []
    outside: list[ranges.Range] = []
    for first, last in merged:
        if count is None or last < count:
            inside.append(ranges.Range(first, last))
        elif first >= count:
            outside.append(ranges.Range(first, last))
        else:
            inside.append(ranges.Range(first, count - 1))
            outside.append(ranges.Range(count, last))
    return inside, outside


def _claim(
    owned: list[_Owned], wanted: Iterable[ranges.Range], name: str
) -> dict[str, list[ranges.Range]]:
    """Give a node what is still free (`owned` stays sorted); return the owners of the rest."""
    taken: dict[str, list[ranges.Range]] = {}
    for first, last in wanted:
        free_from = first
        place = max(bisect_right(owned, first, key=lambda o: o.first) - 1, 0)
        new = []
        while place < len(owned) and owned[place].first <= last:
            other = owned[place]
            if other.last >= first:
                overlap = ranges.Range(max(first, other.first), min(last, other.last))
                taken.setdefault(other.node, []).append(overlap)
                if free_from < overlap.first:
                    new.append(_Owned(free_from, overlap.first - 1, name))
                free_from = overlap.last + 1
            place += 1
        if free_from <= last:
            new.append(_Owned(free_from, last, name))
        for piece in new:
            insort(owned, piece)
    return taken


def _gaps(owned: Iterable[_Owned], count: int) -> list[ranges.Range]:
    free = []
    following = 0
    for first, last, _ in owned:
        if first > following:
            free.append(ranges.Range(following, first - 1))
        following = last + 1
    if following < count:
        free.append(ranges.Range(following, count - 1))
    return free


def addresses(data: Any) -> Iterator[Finding]:
    """Find two servers at one host and port, nodes and poolers alike."""
    owners: dict[tuple[str, int], str] = {}
    for kind, noun in (("nodes", "node"), ("poolers", "pooler")):
        for name in section(data, kind):
            host = _host(dig(data, kind, name, "host"))
            port = tried(fields.port, dig(data, kind, name, "port"))
            if host is None or port is None:
                continue
            owner = owners.setdefault((host, port), f"{noun} {name}")
            if owner != f"{noun} {name}":
                yield Finding((kind, name, "port"), f"{owner} already uses {host}:{port}")


def directories(data: Any, folder: str) -> Iterator[Finding]:
    """Find two nodes with one data directory, and two poolers with one file, on a host.

    `folder` is what relative paths are relative to.
    """
    places: list[tuple[str, str, str]] = [("nodes", "node", "data_directory")]
    places += [("poolers", "pooler", key) for key in ("config", "databases_file")]
    owners: dict[tuple[str, str, str], tuple[str, Loc]] = {}
    for kind, noun, key in places:
        for name in section(data, kind):
            loc = (kind, name, key)
            host = _machine(data, kind, name)
            path = tried(fields.path, dig(data, *loc))
            if host is None or path is None:
                continue
            absolute = os.path.abspath(os.path.join(folder, path))  # noqa: PTH100, PTH118  # pathlib keeps `..`
            what = (kind, host, absolute)
            owner, first = owners.setdefault(what, (f"{noun} {name}", loc))
            if first != loc:
                of = f"{owner}'s {first[-1]}"
                yield Finding(loc, f"{of} already uses this path on the same host ({host})")


def elsewhere(data: Any) -> Iterator[Finding]:
    """Find what cannot be on another machine: a relative path, or no name for that machine."""
    keys = {"nodes": ("data_directory", "bin_directory"), "poolers": ("config", "databases_file")}
    for kind, paths in keys.items():
        for name in section(data, kind):
            ssh = dig(data, kind, name, "ssh")
            if not isinstance(ssh, dict):
                continue
            for key in paths:
                path = tried(fields.path, dig(data, kind, name, key))
                if path is not None and not os.path.isabs(path):  # noqa: PTH117  # it is text
                    yield Finding(
                        (kind, name, key),
                        f"{shown(path)} is a relative path, but the host is reached by "
                        "ssh; write the absolute path",
                    )
            host = tried(fields.host, dig(data, kind, name, "host"))
            if host is not None and host.startswith("/") and not ssh.get("host"):
                yield Finding(
                    (kind, name, "ssh"),
                    f"has no host, and {shown(host)} is a socket directory; add ssh.host",
                    "key",
                )


def _machine(data: Any, kind: str, name: str) -> str | None:
    """Name the machine that has the files: ssh's, if that is another than the server's."""
    ssh = tried(fields.host, dig(data, kind, name, "ssh", "host"))
    if ssh is None:
        return _host(dig(data, kind, name, "host"))
    port = tried(fields.port, dig(data, kind, name, "ssh", "port"))
    return ssh.lower() if port is None else f"{ssh.lower()}:{port}"


def _host(value: object) -> str | None:
    """Name a host for comparison: case aside, and the two names of this machine as one."""
    host = tried(fields.host, value)
    if host is None:
        return None
    return "127.0.0.1" if host.lower() == "localhost" else host.lower()
