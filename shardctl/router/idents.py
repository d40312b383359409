"""Whether ids that are asked for can be found: by their types, and by what came back."""

from __future__ import annotations

from datetime import date
from numbers import Number
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg import postgres

from shardctl.router.errors import IdsUnlike

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardctl.topology.handles import ShardId

# What psycopg makes of values of a type is equal to nothing but one of these.
_EQUAL: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(["int2", "int4", "int8", "oid", "numeric", "float4", "float8"], (Number,)),
    **dict.fromkeys(["text", "varchar", "bpchar", "name"], (str,)),
    **dict.fromkeys(["date", "timestamp", "timestamptz"], (date,)),
    "uuid": (UUID,),
    "bytea": (bytes, bytearray, memoryview),
}


def require_alike(
    field: str,
    oid: int,
    asked: Mapping[ShardId, Collection[Any]],
    found: Collection[tuple[ShardId, Any]],
) -> None:
    """Refuse ids that are not found for their type; raises IdsUnlike.

    `oid` is the column's type, and `found` what came back. The server compares in ways of its
    own: to it, `'123'` is 123, and `'Ann'` is `'ann'` in a column of type citext.
    """
    known = postgres.types.get(oid)
    kind = known.regtype if known else f"OID {oid}"
    equal = _EQUAL.get(known.name) if known else None
    types = {type(one): None for ids in asked.values() for one in ids if one is not None}
    for shard, one in found:
        if one not in asked[shard]:
            raise IdsUnlike(field, " or ".join(given.__name__ for given in types), kind)
    for given in types.keys() - {type(one) for _, one in found}:
        if equal is not None and not issubclass(given, equal):
            raise IdsUnlike(field, given.__name__, kind)
