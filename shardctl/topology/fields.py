"""Values of the file, from text to what they mean; each raises ValueError with a sentence."""

from __future__ import annotations

import re
import time
from datetime import timedelta

from shardctl.ids import times
from shardctl.topology import ranges
from shardctl.topology.names import MAX_IDENTIFIER, SchemaPattern
from shardctl.topology.problems import shown

MAX_SHARDS = 1_000_000
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_DAYS = 36_500
_SIZES = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}

HANDLE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$"
"""The name of a node or a pooler."""
DURATION_PATTERN = r"^[0-9]{1,13}(ms|s|m|h|d)$"
SIZE_PATTERN = r"^[1-9][0-9]{0,8}([kKMGT]B?)$"
EPOCH_PATTERN = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,3})?)? ?([Zz]|[+-][0-9]{2}:?[0-9]{2})?)?$"
)
HOST_PATTERN = r"""^[^-\s,@'"`$\\;&<>|(){}][^\s,@'"`$\\;&<>|(){}]*$"""
LOGIN_PATTERN = r"""^[^-\s'"`$\\;&<>|(){}][^\s'"`$\\;&<>|(){}]*$"""
"""A host's name, and a user's to log in there: ssh_config may hand both to a shell, unquoted."""
SHARDS_PATTERN = r"^ *(none|[0-9]+( *- *[0-9]+)?( *, *[0-9]+( *- *[0-9]+)?)*) *$"


def text(value: object) -> str:
    """Take a single value, not empty, in one line."""
    if isinstance(value, dict | list):
        raise ValueError("expected a single value")  # noqa: TRY004  # pydantic takes ValueError only
    if value is None or not str(value).strip():
        raise ValueError("is empty")
    if "\0" in str(value) or "\n" in str(value):
        raise ValueError("contains a line break or a zero byte")
    return str(value)


def setting(value: object) -> str:
    """Take the value of a parameter; the empty text, in quotes, is one too."""
    return "" if value == "" else text(value)


def _whole(value: object, low: int, high: int, noun: str) -> int:
    found = text(value)
    if not re.fullmatch("[0-9]{1,15}", found) or not low <= int(found) <= high:
        raise ValueError(f"{shown(found)[1:-1]} is not {noun} ({low}-{high})")
    return int(found)


def port(value: object) -> int:
    """Read a port.

    >>> port("6101")
    6101
    """
    return _whole(value, 1, 65535, "a port")


def bits(value: object) -> int:
    """Read a number of bits; the sum is judged elsewhere."""
    return _whole(value, 1, 62, "a number of bits")


def count(value: object) -> int:
    """Read a number of shards."""
    return _whole(value, 1, MAX_SHARDS, "a number of shards")


def name(value: object) -> str:
    """Read a name as PostgreSQL keeps them."""
    found = text(value)
    if (size := len(found.encode())) > MAX_IDENTIFIER:
        raise ValueError(f"{shown(found)} is {size} bytes long; a name has at most 63")
    return found


def database_name(value: object) -> str:
    """Read the name of a database that one can connect to and change."""
    found = name(value)
    if found in {"template0", "template1"}:
        raise ValueError(f"{found} is a template database of PostgreSQL; choose another name")
    return found


def host(value: object) -> str:
    """Read one host: a name, an address, or the folder of a socket.

    What is refused is not shown, for it may be a URL with a password in it.
    """
    found = text(value)
    if "://" in found or not re.fullmatch(HOST_PATTERN, found):
        raise ValueError("is not one host name or address (no URL, no list, no spaces)")
    return found


def login(value: object) -> str:
    """Read the name of a user to log in as by SSH.

    >>> login("ops")
    'ops'
    """
    found = text(value)
    if not re.fullmatch(LOGIN_PATTERN, found):
        raise ValueError("begins with -, or has a space or a character that a shell interprets")
    return found


def path(value: object) -> str:
    """Read a path; it is made absolute elsewhere."""
    found = text(value)
    if found.startswith("~"):
        raise ValueError(f"{shown(found)}: ~ is not expanded here; write the absolute path")
    return found


def duration(value: object) -> timedelta:
    """Read a duration.

    >>> duration("150ms"), duration("7d")
    (datetime.timedelta(microseconds=150000), datetime.timedelta(days=7))
    """
    found = text(value)
    match = re.fullmatch("([0-9]{1,13})(ms|s|m|h|d)", found)
    if match is None:
        raise ValueError(f"{shown(found)} is not a duration such as 150ms, 5s, 10m, 24h or 7d")
    milliseconds = int(match[1]) * _UNITS[match[2]]
    if milliseconds > _LONGEST_DAYS * _UNITS["d"]:
        raise ValueError(f"{shown(found)} is longer than {_LONGEST_DAYS}d")
    return timedelta(milliseconds=milliseconds)


def positive_duration(value: object) -> timedelta:
    """Read a duration above zero."""
    found = duration(value)
    if not found:
        raise ValueError(f"{shown(value)} is zero; the minimum is 1ms")
    return found


def size(value: object) -> int:
    """Read a size in bytes above zero, in units of 1024.

    >>> size("64MB"), size("50M"), size("2GB")
    (67108864, 52428800, 2147483648)
    """
    found = text(value)
    match = re.fullmatch("([1-9][0-9]{0,8})([kKMGT])B?", found)
    if match is None:
        raise ValueError(f"{shown(found)} is not a size such as 512MB, 50M, 20GB or 1TB")
    return int(match[1]) * _SIZES[match[2].upper()]


def epoch(value: object) -> int:
    """Read a time that is not in the future as milliseconds since 1970; without a zone it is UTC.

    >>> epoch("2011-08-24T21:07:01.721Z") == epoch("2011-08-24 23:07:01.721+02:00")
    True
    """
    found = text(value)
    try:
        if not re.fullmatch(EPOCH_PATTERN, found):  # 1420070400000 would be a day of the year 1420
            raise ValueError  # noqa: TRY301  # one message for both ways to be no time
        moment = times.parse(found.upper().replace(" ", "T", 1).replace(" ", ""))
    except ValueError:
        raise ValueError(f"{shown(found)} is not a time such as 2011-08-24T21:07:01.721Z") from None
    if moment > time.time() * 1000:
        raise ValueError(f"{shown(found)} is in the future; the epoch must be in the past")
    return moment


def milliseconds(length: timedelta) -> int:
    """Count the milliseconds of a duration."""
    return length // timedelta(milliseconds=1)


def schema_pattern(value: object) -> SchemaPattern:
    """Read how schemas are named; their length is judged elsewhere."""
    return SchemaPattern.parse(text(value))


def shard_ranges(value: object) -> tuple[ranges.Range, ...]:
    """Read a list of shards, not expanded."""
    return ranges.parse(text(value))
