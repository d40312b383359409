"""Definitions as servers of different major versions write them, made comparable; pure.

PostgreSQL 15 writes `users.name` in a view where 16 writes `name`, and other parentheses around
the expressions of an index.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.checks.structure_groups import Group, Key

_TOKEN = re.compile(
    r"""'(?:[^']|'')*'            # a constant stays as it is
      | (?:"(?:[^"]|"")*"|\w+)\.  # a qualification
      | [()]""",
    re.VERBOSE,
)
_ALL = frozenset(
    ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"),
)
"""What GRANT ALL on a table grants before PostgreSQL 17."""
_SINCE_17 = "MAINTAIN"


def level(groups: Mapping[int, Sequence[Group]]) -> list[Group]:
    """Give all groups, by the major version of their servers, with one text for one definition.

    Texts of different versions are taken for the same if they differ only in parentheses and in
    the qualification of names. Those of the version with most shards stay as they are.
    """
    granted = {major: [_without_maintain(one) for one in of] for major, of in groups.items()}
    if len(granted) < 2:
        return [one for of in granted.values() for one in of]
    usual = max(granted, key=lambda major: (sum(len(g.shards) for g in granted[major]), major))
    texts: dict[Key, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for group in granted[usual]:
        for thing in group.things.values():
            texts[thing.key][_bare(thing.description)][thing.description] += len(group.shards)
    return [
        one if major == usual else _translated(one, texts)
        for major, of in granted.items()
        for one in of
    ]


def _translated(group: Group, texts: Mapping[Key, Mapping[str, Counter[str]]]) -> Group:
    """Give a group with the texts of another version where these mean the same."""
    things = dict(group.things)
    for key, thing in group.things.items():
        alike = texts[key].get(_bare(thing.description)) if key in texts else None
        if alike and thing.description not in alike:
            ((said, _),) = alike.most_common(1)
            things[key] = thing._replace(description=said)
    return dataclasses.replace(group, things=things)


def _bare(text: str) -> str:
    """Leave out what versions write differently, but not from constants.

    >>> _bare("VIEW AS SELECT users.name FROM users WHERE (users.id > 1);")
    'VIEW AS SELECT name FROM users WHERE id > 1;'
    >>> _bare("CHECK ((mail <> 'a.b(c)'::text))")
    "CHECK mail <> 'a.b(c)'::text"
    """
    return _TOKEN.sub(lambda found: found[0] if found[0].startswith("'") else "", text)


def _without_maintain(group: Group) -> Group:
    """Leave out the right MAINTAIN of roles that have all others: GRANT ALL lacks it before 17."""
    things = {
        key: thing._replace(description=_grants(thing.description))
        if key.kind == "grant"
        else thing
        for key, thing in group.things.items()
    }
    return dataclasses.replace(group, things=things)


def _grants(description: str) -> str:
    """Leave MAINTAIN out of the rights of one relation where it goes with all others.

    >>> rights = "DELETE INSERT MAINTAIN REFERENCES SELECT TRIGGER TRUNCATE UPDATE".split()
    >>> _grants(", ".join(f"app {right}" for right in rights))
    'app DELETE, app INSERT, app REFERENCES, app SELECT, app TRIGGER, app TRUNCATE, app UPDATE'
    >>> _grants("app MAINTAIN, app SELECT")
    'app MAINTAIN, app SELECT'
    """
    rights = description.split(", ")
    has = set(rights)
    return ", ".join(
        one
        for one in rights
        if f" {_SINCE_17}" not in one
        or not all(one.replace(f" {_SINCE_17}", f" {right}") in has for right in _ALL)
    )
