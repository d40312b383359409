"""Rules between the keys of a topology; they look at raw data and take nothing for granted.

Those of place: no shard, address, folder or file has two owners, and no shard has none.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardctl.topology import fields, names, ranges
from shardctl.topology.problems import Finding, Loc, shown
from shardctl.topology.spec import (
    ELSEWHERE,
    KEYWORDS,
    NO_PASSWORDS,
    NO_SECRETS,
    SECRETS,
    asks_password,
    holds_password,
)
from shardctl.topology.wording import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


T = TypeVar("T")
OPTIONS = (("database", "options"), ("database", "subscription_options"))
"""Where the topology has keywords of libpq."""
_DEFAULT_BITS = {"time": "41", "shard": "13", "sequence": "10"}
_STRICT_MARGIN_BITS = 24
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*")


def dig(data: Any, *path: str) -> Any:
    """Follow a path through raw data; None where it ends early."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def section(data: Any, *path: str) -> dict[str, Any]:
    """Give the mapping at a path, or an empty one."""
    found = dig(data, *path)
    return found if isinstance(found, dict) else {}


def tried(read: Callable[[object], T], value: object) -> T | None:
    """Read a value; None where it is wrong, which pydantic reports."""
    try:
        return read(value)
    except ValueError:
        return None


def passwords(data: Any, loc: Loc = ()) -> Iterator[Finding]:
    """Find every key and every value that is or holds a password; no message shows one."""
    if isinstance(data, dict):
        for key, value in data.items():
            here = (*loc, key)
            # A node may be called password-db, a table password_resets.
            named = loc == ("database", "keys") or (
                loc in {("nodes",), ("poolers",)} and isinstance(value, dict)
            )
            if asks_password(key) and not named:
                yield Finding(here, NO_PASSWORDS, "key")
            elif loc in OPTIONS and key in SECRETS:
                yield Finding(here, NO_SECRETS, "key")
            else:
                yield from passwords(value, here)
    elif isinstance(data, list):
        for place, value in enumerate(data):
            yield from passwords(value, (*loc, place))
    elif isinstance(data, str) and holds_password(data):
        yield Finding(loc, NO_PASSWORDS)


def remnants(data: Any, secrets: Iterable[Finding]) -> set[Loc]:
    """List the keys that may be pieces of a password: {password: a,b} is two keys for YAML."""
    found: set[Loc] = set()
    for finding in secrets:
        *above, last = finding.loc
        # Lists hold no secrets' keys, so that the way down is keys only, or ends early.
        keys = list(section(data, *map(str, above)))
        for key in keys[keys.index(str(last)) + 1 :] if last in keys else []:
            if dig(data, *map(str, above), key) is None:
                found.add((*above, key))
    return found


def shards_and_ids(data: Any) -> Iterator[Finding]:
    """Check the number of shards, their schemas and the bits of an id against each other."""
    given = section(data, "id", "bits")
    bits = {
        key: tried(fields.bits, default if given.get(key) is None else given[key])
        for key, default in _DEFAULT_BITS.items()
    }
    time, shard, sequence = bits["time"], bits["shard"], bits["sequence"]
    count = tried(fields.count, dig(data, "shards", "count"))
    if shard is not None and count is not None and count > 2**shard:
        yield Finding(
            ("shards", "count"),
            f"{count} shards do not fit in {shard} bits (id.bits.shard): at most {2**shard}",
        )
    if time is not None and shard is not None and sequence is not None:
        yield from _sum(data, time, shard, sequence)
    pattern = tried(fields.schema_pattern, dig(data, "shards", "schema"))
    if pattern is not None and count is not None:
        size = len(pattern.schema(count - 1).encode())
        if size > names.MAX_IDENTIFIER:
            yield Finding(
                ("shards", "schema"),
                f"the schema name of shard {count - 1} would have {size} bytes; the maximum is 63",
            )


def _sum(data: Any, time: int, shard: int, sequence: int) -> Iterator[Finding]:
    total = time + shard + sequence
    if total > 64:
        yield Finding(
            ("id", "bits"),
            f"time {time} + shard {shard} + sequence {sequence} are {total} bits; an id has 64",
        )
        return
    # The topmost of 64 bits is the sign: an id never uses it.
    usable = time if total < 64 else time - 1
    strict = dig(data, "id", "generator") in {None, "strict"}
    # The rest of 63 bits holds the strict generator's block number, which wraps around. A
    # session is safe while others draw fewer ids, during one draw of its own, than half of all
    # blocks hold: 2^24 ids take one sequence 16 seconds at a million a second.
    most = 62 + sequence - _STRICT_MARGIN_BITS
    if strict and usable > most:
        yield Finding(
            ("id", "bits", "time"),
            f"{time} is too many for the strict generator; at most "
            f"{most + (total == 64)} with {sequence} of sequence, or use `generator: "
            "classic`",
        )


def handles(data: Any) -> Iterator[Finding]:
    """Check the names of nodes and poolers."""
    for kind, noun in (("nodes", "node"), ("poolers", "pooler")):
        for name in section(data, kind):
            if not re.fullmatch(fields.HANDLE_PATTERN[:-1], name):
                yield Finding(
                    (kind, name),
                    f"{shown(name)} is not a valid name for a {noun}: use at most 40 "
                    "letters, digits, _ . -, beginning with a letter or a digit",
                    "key",
                )


def parameters(data: Any) -> Iterator[Finding]:
    """Check the names of libpq's keywords and of server parameters."""
    for where in OPTIONS:
        for key in section(data, *where):
            if key in ELSEWHERE:
                yield Finding((*where, key), f"set {ELSEWHERE[key]} instead", "key")
            elif key not in KEYWORDS:
                near = suggestion(key, sorted(KEYWORDS))
                near = near if near.startswith("did") else "see libpq's parameter key words"
                yield Finding((*where, key), f"is not a libpq keyword; {near}", "key")
    for name in section(data, "nodes"):
        for key in section(data, "nodes", name, "settings"):
            if not _PARAMETER.fullmatch(key):
                loc: Loc = ("nodes", name, "settings", key)
                yield Finding(loc, f"{shown(key)} is not the name of a server parameter", "key")


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
