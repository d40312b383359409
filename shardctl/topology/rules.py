"""Rules between the keys of a topology; they look at raw data and take nothing for granted.

Those of place: no shard and no address has two owners, and no shard has none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from shardctl.meter import listed
from shardctl.topology import fields, names, ranges
from shardctl.topology.problems import Finding, Loc, shown
from shardctl.topology.spec import (
    ASSIGNED,
    ELSEWHERE,
    NO_PASSWORDS,
    NO_SECRETS,
    SECRETS,
    asks_password,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


T = TypeVar("T")
OPTIONS = (("database", "options"), ("database", "subscription_options"))
"""Where the topology has keywords of libpq."""
_DEFAULT_BITS = {"time": "41", "shard": "13", "sequence": "10"}
_STRICT_MARGIN_BITS = 24


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
    elif isinstance(data, str) and ASSIGNED.search(data):
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
    given = {key: bits for key, bits in section(data, "id", "bits").items() if bits is not None}
    bits = _DEFAULT_BITS | given
    time, shard, sequence = (tried(fields.bits, bits[key]) for key in _DEFAULT_BITS)
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
            if not re.fullmatch(fields.HANDLE_PATTERN, name):
                yield Finding(
                    (kind, name),
                    f"{shown(name)} is not a valid name for a {noun}: use at most 40 "
                    "letters, digits, _ . -, beginning with a letter or a digit",
                    "key",
                )


def keywords(data: Any) -> Iterator[Finding]:
    """Find keywords of libpq that are set elsewhere."""
    for where in OPTIONS:
        for key in section(data, *where):
            if key in ELSEWHERE:
                said = "set host, port, name or user of the node or the database instead"
                yield Finding((*where, key), said, "key")


def ownership(data: Any) -> Iterator[Finding]:
    """Find shards that do not exist, have two owners or none; ranges are never expanded."""
    count = tried(fields.count, dig(data, "shards", "count"))
    nodes = list(section(data, "nodes"))
    lists = [tried(fields.shard_ranges, dig(data, "nodes", name, "shards")) for name in nodes]
    pieces = sorted(
        (first, place, last) for place, found in enumerate(lists) for first, last in found or ()
    )
    shared: dict[tuple[int, int], list[ranges.Range]] = defaultdict(list)
    outside: dict[int, list[ranges.Range]] = defaultdict(list)
    free: list[ranges.Range] = []
    end = fields.MAX_SHARDS if count is None else count
    reach, owner = -1, 0
    for first, place, last in [*pieces, (end, 0, end - 1)]:
        if reach + 1 < min(first, end):
            free.append(ranges.Range(reach + 1, min(first, end) - 1))
        if last >= end:
            outside[place].append(ranges.Range(max(first, end), last))
        if first <= min(reach, last):
            both = max(place, owner), min(place, owner)
            shared[both].append(ranges.Range(first, min(last, reach)))
        if last > reach:
            reach, owner = last, place
    for (place, other), twice in shared.items():
        said = f"node {nodes[other]} also has {_brief(twice)}; a shard belongs to one node"
        yield Finding(("nodes", nodes[place], "shards"), said)
    if count is None:
        return
    for place, found in outside.items():
        said = f"{_brief(found)} is outside 0-{count - 1} (shards.count: {count})"
        yield Finding(("nodes", nodes[place], "shards"), said)
    # Where a node's list cannot be read, what is missing is unknown.
    if free and nodes and None not in lists:
        yield Finding(("nodes",), f"no node owns {_brief(free)}", "key")


def _brief(found: Iterable[ranges.Range]) -> str:
    return listed(ranges.render(found).split(","))


def addresses(data: Any) -> Iterator[Finding]:
    """Find two servers at one host and port, nodes and poolers alike."""
    owners: dict[tuple[str, int], str] = {}
    for kind, noun in (("nodes", "node"), ("poolers", "pooler")):
        for name, one in section(data, kind).items():
            who = f"{noun} {name}"
            host, port = tried(fields.host, dig(one, "host")), tried(fields.port, dig(one, "port"))
            if host is not None and port is not None:
                host = "127.0.0.1" if host.lower() == "localhost" else host.lower()
                owner = owners.setdefault((host, port), who)
                if owner != who:
                    yield Finding((kind, name, "port"), f"{owner} already uses {host}:{port}")


MAX_ALIAS = 61
"""Bytes of a name that PAUSE and RESUME can take: 64, less two quotes and an end."""
_ALIAS = re.compile(r"[A-Za-z0-9_.-]+")


def alias_flaw(alias: str) -> str | None:
    """Explain why PgBouncer could not offer or pause an alias of this name; None if it could.

    Its file takes other names only since 1.23, and its console takes no longer ones.

    >>> alias_flaw("shard0017"), alias_flaw("shard 17")
    (None, "'shard 17' is not a valid alias: PgBouncer needs letters, digits, _ . - only")
    """
    if not _ALIAS.fullmatch(alias):
        return f"{shown(alias)} is not a valid alias: PgBouncer needs letters, digits, _ . - only"
    if len(alias) > MAX_ALIAS:
        return f"{shown(alias)} is too long: PgBouncer pauses aliases of at most {MAX_ALIAS} bytes"
    return None


def aliases(data: Any) -> Iterator[Finding]:
    """Find poolers whose aliases PgBouncer cannot offer, or that would be one name for two."""
    database = tried(fields.database_name, dig(data, "database", "name"))
    count = tried(fields.count, dig(data, "shards", "count"))
    given = dig(data, "shards", "schema")
    pattern = tried(fields.schema_pattern, "shard{id}" if given is None else given)
    nodes = [n for n in section(data, "nodes") if re.fullmatch(fields.HANDLE_PATTERN, n)]
    for name in section(data, "poolers"):
        loc = ("poolers", name, "aliases")
        found = dig(data, *loc)
        kinds = found if isinstance(found, list) else ["node"]
        # A pattern's longest name is the last one, and all have the same letters but digits.
        schemas = [pattern.schema(count - 1)] if pattern and count and "shard" in kinds else []
        offered = {names.of_node(database, n): n for n in nodes if database and "node" in kinds}
        wrong = next((text for each in (*schemas, *offered) if (text := alias_flaw(each))), None)
        if wrong:
            yield Finding(loc, wrong)
        elif schemas and pattern and count:
            for alias, node in offered.items():
                shard = pattern.shard(alias)
                if shard is not None and shard < count:
                    text = f"{alias} would be the alias of both node {node} and shard {shard}"
                    yield Finding(loc, text)


RULES = (shards_and_ids, handles, keywords, ownership, addresses, aliases)
