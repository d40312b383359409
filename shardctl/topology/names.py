"""How shards' schemas are named, live and retired, and nodes' aliases."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

MAX_IDENTIFIER = 63
"""Bytes that PostgreSQL keeps of a name (NAMEDATALEN - 1)."""

_FIELD = re.compile(r"\{id(?::0(\d{1,2})d)?\}")
_RETIRED = re.compile(r"__retired_[0-9a-f]{8}\Z")


def is_retired(schema: str) -> bool:
    """Return whether a move has given a schema this name on its source.

    >>> is_retired("shard2__retired_5f3a9c1e"), is_retired("shard2")
    (True, False)
    """
    return _RETIRED.search(schema) is not None


@dataclass(frozen=True, slots=True)
class SchemaPattern:
    """A pattern such as `shard{id}` or `shard{id:04d}`, with exactly one `{id}`.

    >>> pattern = SchemaPattern.parse("shard{id:04d}")
    >>> pattern.schema(17), pattern.shard("shard0017"), pattern.shard("shard17")
    ('shard0017', 17, None)
    """

    prefix: str
    width: int
    suffix: str

    @classmethod
    def parse(cls, text: str) -> SchemaPattern:
        """Read a pattern; raises ValueError with a sentence for people."""
        fields = list(_FIELD.finditer(text))
        rest = _FIELD.sub("", text)
        if len(fields) != 1 or "{" in rest or "}" in rest:
            raise ValueError(
                f"{text!r} needs exactly one {{id}} (or {{id:04d}}) and no other braces"
            )
        field = fields[0]
        return cls(text[: field.start()], int(field[1] or 0), text[field.end() :])

    def schema(self, shard: int) -> str:
        """Name the schema of `shard`."""
        return f"{self.prefix}{shard:0{self.width}d}{self.suffix}"

    def shard(self, schema: str) -> int | None:
        """Give the shard whose live schema is called `schema`, or None."""
        end = len(schema) - len(self.suffix)
        digits = schema[len(self.prefix) : end]
        if not digits.isdecimal() or not digits.isascii():
            return None
        return int(digits) if self.schema(int(digits)) == schema else None

    def __str__(self) -> str:
        field = f"{{id:0{self.width}d}}" if self.width else "{id}"
        return f"{self.prefix}{field}{self.suffix}"


def of_node(database: str, node: str) -> str:
    """Name a node's alias.

    >>> of_node("app", "a")
    'app_a'
    """
    return f"{database}_{node}"


def retired(schema: str, move: str) -> str:
    """Name the retired copy of `schema` after the move (8 hex digits) that retired it.

    A name that would not fit 63 bytes is shortened, never within a character, and gets a
    digest of the whole, so that two shards never share a retired name.

    >>> retired("shard2", "5f3a9c1e")
    'shard2__retired_5f3a9c1e'
    """
    tail = f"__retired_{move}"
    room = MAX_IDENTIFIER - len(tail)
    if len(schema.encode()) > room:
        digest = hashlib.sha256(schema.encode()).hexdigest()[:8]
        schema = schema.encode()[: room - 9].decode(errors="ignore") + "_" + digest
    return schema + tail
