"""Preflight's questions in SQL, which `checks.sql` has, and what is said of the answers.

A block is `-- check: NAME`, then YAML in comment lines, then what is asked:

- `about`: what has to be true, for the reference.
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
from shardctl.moves.preflight import member, server
from shardctl.moves.preflight.subject import Kind, Place, Subject, Unknown
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shardctl.moves.preflight.subject import Before, Context

    Answers = Mapping[str, list[str]]
    Look = Callable[[Context], Answers]
    Definitions = dict[tuple[str, str], tuple[Any, str]]

_SENDERS = 2
"""A clone takes them: pg_basebackup one for the files and one for the WAL in the meantime."""
_BLOCK = re.compile(r"^-- check: (.+)\n((?:-- .*\n)+)((?:(?!^-- check: ).*\n?)*)", re.MULTILINE)


class Said(NamedTuple):
    """What is said of a kind of answer; a note has no hint."""

    code: str
    says: str
    hint: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One block; `said` is by method and key."""

    name: str
    about: str
    at: str
    again: Before | None
    said: Mapping[str, Mapping[str, Said]]
    asked: tuple[sql.Composed, ...]

    def of(self, method: str) -> Mapping[str, Said]:
        """Give what is said in moves of a method, by key."""
        return {**self.said.get("any", {}), **self.said.get(method, {})}

    def subjects(self, place: Place) -> Iterator[Subject]:
        """Give the row of the registry, if this is asked there."""
        methods = [Kind.stream, Kind.reverse] if self.of(planning.STREAM) else []
        if place is Place.source and self.of(planning.CLONE):
            methods.append(Kind.clone)
        if {"source": Place.member, "target": Place.source}.get(self.at) is place or not methods:
            return
        if self.at == "both" and place is Place.source:
            name, about = f"source's {self.name}", "with what it is compared"
            yield Subject(name, about, place, self.define, of=methods)
            return
        look = self.look if place is Place.source else self.look_at_target
        whose = f"{'source' if place is Place.source else 'target'}'s "
        yield Subject(
            (whose if self.at == "each" else "") + self.name,
            self.about,
            place,
            look,
            partial(self.judge, look),
            partial(self.notes, look),
            methods,
            self.again if place is Place.source else None,
        )

    def look(self, context: Context) -> Answers:
        """Ask the source; raises Unknown of one that is too old for a stream."""
        if context.streams:
            server.require_streams(context)
        return self._answers(context.session.execute(self.asked[0], _given(context)))

    def define(self, context: Context) -> Definitions:
        """Define on the source what it has or needs; raises Unknown as `look`."""
        server.require_streams(context)
        named = context.session.execute(self.asked[0], _given(context)).fetchall()
        given = _given(context) | {"named": json.dumps(named)}
        rows = context.session.execute(self.asked[1], given)
        return {(kind, name): (compared, shown) for kind, name, compared, shown in rows}

    def look_at_target(self, context: Context) -> Answers:
        """Ask the target; raises Unknown of one that is too old for a stream."""
        if context.need(member.look).major < server.OLDEST_STREAMED:
            raise Unknown
        given = _given(context, at_target=True)
        if self.at != "both":
            return self._answers(context.member.execute(self.asked[0], given))
        here = context.need(self.define)
        rows = context.member.execute(self.asked[1], given | {"named": json.dumps(list(here))})
        there = {(kind, name): (compared, shown) for kind, name, compared, shown in rows}
        return self._answers(self._differing(context, here, there))

    def judge(self, look: Look, context: Context) -> Iterator[SourceUnfit | TargetUnfit]:
        """Refuse what has a hint."""
        plan = context.plan
        for one, said, hint in self._told(look, context):
            if hint is not None and look == self.look:
                yield SourceUnfit(plan.source, one.code, said, hint=hint)
            elif hint is not None:
                yield TargetUnfit(plan.target, one.code, said, hint=hint)

    def notes(self, look: Look, context: Context) -> Iterator[str]:
        """Report what has none."""
        return (said for _, said, hint in self._told(look, context) if hint is None)

    def _told(self, look: Look, context: Context) -> Iterator[tuple[Said, str, str | None]]:
        plan, database, found = context.plan, context.topology.database, context.need(look)
        given = {"source": plan.source, "target": plan.target, "user": database.user}
        given |= {"role": quote_identifier(database.user), "replica": database.replication_user}
        for key, one in self.of(plan.method).items():
            if names := found.get(key):
                says = one.says if "{names}" in one.says else f"{one.says}: {{names}}"
                hint = one.hint.format(**given) if one.hint is not None else None
                yield one, says.format(names=listed(names), **given), hint

    def _answers(self, rows: Iterable[tuple[str, str]]) -> Answers:
        known = {key for keys in self.said.values() for key in keys}
        found: dict[str, list[str]] = defaultdict(list)
        for key, name in rows:
            if key not in known:
                raise AssertionError(key)
            found[key].append(name)
        return found

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


def _given(context: Context, *, at_target: bool = False) -> dict[str, Any]:
    """Give what queries know of a move.

    `streams_as` is who writes or reads the stream's rows there. For the move, or for its reverse,
    WAL is decoded, and senders and slots have to be free.
    """
    plan, database = context.plan, context.topology.database
    kept = plan.reverse is not None
    return {
        "schemas": list(plan.schemas),
        "slot": plan.slot,
        "target": plan.target,
        "ignores": plan.options.ignore_standby,
        "purpose": context.purpose,
        "streams_as": database.user if at_target else database.replication_user,
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
        about, at, again = head.pop("about"), head.pop("at"), head.pop("again", None)
        said = {
            method: {
                key: Said(one.get("code", key), one["says"], one.get("hint"))
                for key, one in keys.items()
            }
            for method, keys in head.items()
        }
        # A file of the package is as literal as a string in the code.
        queries = tuple(
            sql.SQL(cast("LiteralString", one)).format(held=catalog.QUERIES["held"])
            for one in asked.split("\n-- then\n")
        )
        yield Check(name, about, at, again, said, queries)


CHECKS = tuple(
    read(resources.files("shardctl.moves.preflight").joinpath("checks.sql").read_text("utf-8"))
)


def of(place: Place) -> Iterator[Subject]:
    """List the subjects in a place, in the order of the file."""
    return (subject for one in CHECKS for subject in one.subjects(place))
