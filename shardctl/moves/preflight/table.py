"""Preflight's questions in SQL, which `checks.sql` has, and what is said of the answers.

A block is `-- check: NAME`, a comment line that says what has to be true, then YAML in comment
lines, then what is asked:

- `at`: `source`, `target` or `each` node, whose answers are rows of a key and a name. Or `both`:
  the first query gives rows of a kind and a name, of what the source has or needs. The second,
  after `-- then`, is asked of both nodes and defines these: kind, name, what is compared, shown.
  The keys are `KIND_missing` and `KIND_differs`, and `KIND_newer` where that is known.
- `again`: the step before which the source is asked once more, `copy` or `cutover`.
- `any`, `clone` or `stream`: for each key, what a move of that method `says` and with which `hint`;
  without a hint it is a note. The key is the refusal's code unless a `code` is given.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple, cast

import yaml
from psycopg import sql

from shardctl.ids.generator import quote_identifier
from shardctl.meter import listed
from shardctl.moves import plan as planning
from shardctl.moves.plan import SourceUnfit, TargetUnfit
from shardctl.moves.preflight import server
from shardctl.moves.preflight.subject import Kind, Place, Subject
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Before, Context

    Answers = Mapping[str, list[str]]
    Look = Callable[[Context], Answers]
    Definitions = dict[tuple[str, str], tuple[Any, str]]

_SENDERS = 2
"""A clone takes them: pg_basebackup one for the files and one for the WAL in the meantime."""
_BLOCK = re.compile(
    r"^-- check: (.+)\n-- .+\n((?:-- .*\n)+)((?:(?!^-- check: ).*\n?)*)", re.MULTILINE
)


class Said(NamedTuple):
    """What is said of a kind of answer; a note has no hint."""

    code: str
    says: str
    hint: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One block; `said` is by method and key."""

    name: str
    at: str
    again: Before | None
    said: Mapping[str, Mapping[str, Said]]
    asked: tuple[sql.Composed, ...]

    def of(self, method: str) -> Mapping[str, Said]:
        """Give what is said in moves of a method, by key."""
        return {**self.said.get("any", {}), **self.said.get(method, {})}

    def subjects(self, place: Place) -> Iterator[Subject]:
        """Give the row of the registry, if this is asked there."""
        at_source = place is Place.source
        methods = [Kind.stream, Kind.reverse] if self.of(planning.STREAM) else []
        if at_source and self.of(planning.CLONE):
            methods.append(Kind.clone)
        if self.at == ("target" if at_source else "source") or not methods:
            return
        if at_source and self.at == "both":
            yield Subject(place, self.define, of=methods)
        else:
            look = self.look if at_source else self.look_at_target
            again = self.again if at_source else None
            yield Subject(place, look, partial(self.judge, look), methods, again)

    def look(self, context: Context) -> Answers:
        """Ask the source; raises Unknown of one that is too old for a stream."""
        if context.streams:
            server.require_streams(context, server.look)
        return _by_key(context.session.execute(self.asked[0], _given(context)))

    def define(self, context: Context) -> Definitions:
        """Define on the source what it has or needs; raises Unknown as `look`."""
        server.require_streams(context, server.look)
        given = _given(context)
        named = context.session.execute(self.asked[0], given).fetchall()
        return _defined(
            context.session.execute(self.asked[1], {**given, "named": json.dumps(named)})
        )

    def look_at_target(self, context: Context) -> Answers:
        """Ask the target; raises Unknown of one that is too old for a stream."""
        server.require_streams(context, server.look_at_target)
        given = _given(context, at_target=True)
        if self.at != "both":
            return _by_key(context.member.execute(self.asked[0], given))
        here = context.need(self.define)
        given["named"] = json.dumps(list(here))
        there = _defined(context.member.execute(self.asked[1], given))
        return _by_key(self._differing(context, here, there))

    def judge(self, look: Look, context: Context) -> Iterator[ShardctlError | str]:
        """Refuse what has a hint, and report what has none."""
        plan, database, found = context.plan, context.topology.database, context.need(look)
        given = {"source": plan.source, "target": plan.target, "user": database.user}
        given |= {"role": quote_identifier(database.user), "alike": catalog.SET_ALIKE}
        for key, one in self.of(plan.method).items():
            if names := found.get(key):
                says = one.says if "{names}" in one.says else f"{one.says}: {{names}}"
                said = says.format(names=listed(names), **given)
                if one.hint is None:
                    yield said
                elif look == self.look:
                    yield SourceUnfit(plan.source, one.code, said, hint=one.hint.format(**given))
                else:
                    yield TargetUnfit(plan.target, one.code, said, hint=one.hint.format(**given))

    def _differing(
        self, context: Context, here: Definitions, there: Definitions
    ) -> Iterator[tuple[str, str]]:
        """Find what the target lacks, or has otherwise than the source."""
        for (kind, name), (compared, shown) in here.items():
            other, text = there.get((kind, name), (None, ""))
            if other is None:
                yield f"{kind}_missing", name
            elif other != compared:
                newer = other > compared and f"{kind}_newer" in self.of(context.plan.method)
                said = f"{name} ({text}, and node {context.plan.source} has {shown})"
                yield f"{kind}_{'newer' if newer else 'differs'}", said


def _by_key(rows: Iterable[tuple[str, str]]) -> Answers:
    found: dict[str, list[str]] = defaultdict(list)
    for key, name in rows:
        found[key].append(name)
    return found


def _defined(rows: Iterable[tuple[str, str, Any, str]]) -> Definitions:
    return {(kind, name): (compared, shown) for kind, name, compared, shown in rows}


def _given(context: Context, *, at_target: bool = False) -> dict[str, Any]:
    """Give what queries know of a move.

    For it, or for its reverse, WAL is decoded, and senders and slots have to be free.
    """
    plan, database = context.plan, context.topology.database
    kept = plan.reverse is not None
    # A stream needs the move's own control table, too.
    owned = () if plan.streams else map(context.topology.schema, context.source.shards)
    return {
        "schemas": list(plan.schemas),
        "owned": ["shardctl"] if at_target else [*{*plan.schemas, *owned}, "shardctl"],
        "slot": plan.slot,
        "target": plan.target,
        "at_target": at_target,
        "streams": plan.streams,
        "reverses": plan.reverses is not None,
        "terminate": plan.options.terminate,
        "ignores": plan.options.ignore_standby,
        "purpose": context.purpose,
        "replication_user": database.replication_user,
        "roles": list(database.app_roles or (database.user,)),
        "decisive": sorted(catalog.DECISIVE),
        # When the move has begun, the tables that it lends it to have it.
        "lends": plan.options.identity_full and not plan.systems,
        "decodes": kept if at_target else plan.streams,
        "senders": int(kept) if at_target else _SENDERS,
        # The slot of a reverse is there already.
        "slots": int(kept if at_target else plan.reverses is None),
    }


def read(text: str) -> Iterator[Check]:
    """Read the blocks of a file."""
    for name, header, asked in _BLOCK.findall(text):
        head = yaml.safe_load(re.sub("(?m)^-- ?", "", header))
        at, again = head.pop("at"), head.pop("again", None)
        said = {
            method: {
                key: Said(one.get("code", key), one["says"], one.get("hint"))
                for key, one in keys.items()
            }
            for method, keys in head.items()
        }
        # A file of the package is as literal as a string in the code.
        queries = tuple(
            sql.SQL(cast("LiteralString", one)).format(
                held=catalog.QUERIES["held"], role_settings=catalog.QUERIES["role_settings"]
            )
            for one in asked.split("\n-- then\n")
        )
        yield Check(name, at, again, said, queries)


CHECKS = tuple(
    read(resources.files("shardctl.moves.preflight").joinpath("checks.sql").read_text("utf-8"))
)
(RIGHTS,) = (one for one in CHECKS if one.name == "rights")


def of(place: Place) -> Iterator[Subject]:
    """List the subjects in a place, in the order of the file."""
    return (subject for one in CHECKS for subject in one.subjects(place))
