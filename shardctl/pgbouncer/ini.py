"""PgBouncer's configuration as it reads it itself: sections, keys, includes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANKS = " \t\n\v\f\r"  # C's, not Unicode's
_INCLUDE = re.compile(r"%include[ \t]+(.*)", re.DOTALL)
_SECTION = re.compile(r"\[([^\]]*)\]")
_PAIR = re.compile(r"([^= ]+)[ \t]*=[ \t]*(?:'((?:[^']|'')*)'|([^ ]*))")
_KEY = re.compile(r"(?:'([^']+)'|([A-Za-z0-9_.*-]+))[ \t]*=[ \t]*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Include:
    """Another file, read where it is named; its first lines belong to `section`.

    `line` counts from 1. What follows the include belongs to the other file's last section.
    """

    line: int
    path: str
    section: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a section: a parameter, a database or a user."""

    line: int
    section: str
    key: str
    value: str


def read(text: str, section: str = "") -> Iterator[Include | Setting]:
    r"""Read a file's text, whose first lines belong to `section`; what is malformed is left out.

    >>> [item.key for item in read("[databases]\nx = host=a\n; y =\n[pgbouncer]\nz=1")]
    ['x', 'z']
    """
    for number, line in enumerate(text.split("\n"), 1):
        rest = line.strip(_BLANKS)
        while found := _SECTION.match(rest):
            section = found[1]
            rest = rest[found.end() :].lstrip(_BLANKS)
        if include := _INCLUDE.fullmatch(rest):
            yield Include(number, include[1], section)
        elif key := _KEY.fullmatch(rest):
            yield Setting(number, section, key[1] or key[2], key[3])


def pairs(value: str) -> dict[str, str]:
    """Take a database's connection string apart.

    >>> pairs("host=a port=1 connect_query='SET x TO ''y z'''")
    {'host': 'a', 'port': '1', 'connect_query': "SET x TO 'y z'"}
    """
    found = _PAIR.finditer(value)
    return {m[1]: m[3] if m[2] is None else m[2].replace("''", "'") for m in found}
