"""The names under which poolers offer the fleet: what they are, and which PgBouncer can take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardctl.topology import fields
from shardctl.topology.names import of_node
from shardctl.topology.problems import Finding, shown
from shardctl.topology.rules import dig, section, tried

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_ALIAS", "aliases", "flaw", "of_node"]

MAX_ALIAS = 61
"""Bytes of a name that PAUSE and RESUME can take: 64, less two quotes and an end."""

_ALIAS = re.compile(r"[A-Za-z0-9_.-]+")


def flaw(alias: str) -> str | None:
    """Explain why PgBouncer could not offer or pause an alias of this name; None if it could.

    Its file takes other names only since 1.23, and its console takes no longer ones.

    >>> flaw("shard0017"), flaw("shard 17")
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
    nodes = [n for n in section(data, "nodes") if re.fullmatch(fields.HANDLE_PATTERN[:-1], n)]
    for name in section(data, "poolers"):
        loc = ("poolers", name, "aliases")
        found = dig(data, *loc)
        kinds = found if isinstance(found, list) else ["node"]
        # A pattern's longest name is the last one, and all have the same letters but digits.
        names = [pattern.schema(count - 1)] if pattern and count and "shard" in kinds else []
        of_nodes = [of_node(database, n) for n in nodes] if database and "node" in kinds else []
        wrong = next((text for each in (*names, *of_nodes) if (text := flaw(each))), None)
        if wrong:
            yield Finding(loc, wrong)
        elif names and pattern and count:
            for node, alias in zip(nodes, of_nodes, strict=False):
                shard = pattern.shard(alias)
                if shard is not None and shard < count:
                    text = f"{alias} would be the alias of both node {node} and shard {shard}"
                    yield Finding(loc, text)
