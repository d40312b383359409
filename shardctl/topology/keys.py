"""From a shard key to its shard, the same in every process and every language."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING
from uuid import UUID

from shardctl.errors import Misused
from shardctl.ids.layout import HASH_DIGITS
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable

Key = int | str | UUID

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}|0[xX][0-9a-fA-F]{1,16}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def key_unsupported(what: str) -> Misused:
    """Report a value that is not a shard key, by its type or because it is not text."""
    return Misused(
        "key_unsupported",
        f"{what} is not a shard key",
        hint="use an integer, a Unicode string, or a uuid.UUID",
    )


def shard_of(key: Key, count: int, in_id: Callable[[int], int | None] | None = None) -> ShardId:
    """Give the shard of a key, of `count` shards; raises key_unsupported, key_not_an_id.

    An integer's is the key modulo `count`, never negative. SQL's `%` takes the sign of the key;
    there, write `((key % n) + n) % n`. Where keys are ids, it is what `in_id` finds in the bits
    of the key. A string's or a UUID's is its `stable_hash` modulo `count`.

    >>> shard_of(31341, 2000), shard_of(-1, 8)
    (1341, 7)
    >>> shard_of("ann", 2000)
    866
    """
    if type(key) is not int and (isinstance(key, bool) or not isinstance(key, int)):
        return ShardId(stable_hash(key) % count)
    if in_id is None:
        return ShardId(key % count)
    shard = in_id(key)
    if shard is None or shard >= count:
        raise Misused(
            "key_not_an_id",
            f"key {key} is not an id that shards 0 to {count - 1} can have made",
            hint="with `shards: {key: id}` an integer key is an id that `next_id()` made; keys "
            "that come from elsewhere can be text",
        )
    return ShardId(shard)


def stable_hash(key: Key) -> int:
    """Give the number that stands for a string or a UUID: 60 bits, never negative.

    It is the first 15 hexadecimal digits of the SHA-256 of its UTF-8 text. A UUID's text is the
    usual one, in small letters, so that `uuid` and `uuid::text` agree. Raises key_unsupported, also
    of an integer.
    """
    if not isinstance(key, str | UUID):
        raise key_unsupported(f"a value of type {type(key).__name__}")
    text = key if isinstance(key, str) else str(key)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise key_unsupported(f"{text!a} (invalid Unicode)") from error
    return int(hashlib.sha256(data).hexdigest()[:HASH_DIGITS], 16)


def read(text: str) -> Key:
    """Take a key as a person types it: an integer, a UUID, or else the text itself.

    >>> read("-1"), read("ann"), read("6F9619FF-8B86-D011-B42D-00CF4FC964FF")
    (-1, 'ann', UUID('6f9619ff-8b86-d011-b42d-00cf4fc964ff'))
    """
    if (number := integer(text)) is not None:
        return number
    # Without its hyphens it may as well be a digest, which is text.
    return UUID(text) if _UUID.fullmatch(text) else text


def integer(text: str) -> int | None:
    """Take an integer, decimal or as `0x` and up to 16 digits; None where it is none.

    >>> integer("0x10"), integer("1_000")
    (16, None)
    """
    if not _INTEGER.fullmatch(text):
        return None
    return int(text, 16 if text[:2] in {"0x", "0X"} else 10)
