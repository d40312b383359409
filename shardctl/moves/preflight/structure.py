"""What the moved structure refers to outside of itself, and whether the target has it alike."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.ids.generator import quote_identifier
from shardctl.meter import listed
from shardctl.moves.preflight import identities, kinds
from shardctl.moves.preflight.subject import STREAM
from shardctl.moves.refusals import Reason, TargetUnfit
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection

KINDS = ("extension", "type", "function", "relation", "collation", "role")

_THERE = "create them there as on the source; a migration that runs everywhere does"
_MISSING = {
    "extension": Reason(
        "extension_missing", "needs extensions that it lacks", "CREATE EXTENSION there"
    ),
    "type": Reason("type_missing", "needs types that it lacks", _THERE),
    "function": Reason("function_missing", "needs functions that it lacks", _THERE),
    "relation": Reason(
        "relation_missing",
        "needs tables and other relations that it lacks",
        "create them there with their rows, or drop what refers to them",
    ),
    "collation": Reason(
        "collation_missing",
        "needs collations that it lacks",
        "CREATE COLLATION there, on a system that has the locale",
    ),
    "role": Reason(
        "role_missing", "needs roles that it lacks", "CREATE ROLE there, as on the source"
    ),
}
_DIFFERS = {
    "extension": Reason(
        "extension_differs", "needs newer extensions", "ALTER EXTENSION ... UPDATE there"
    ),
    "type": Reason(
        "type_differs", "needs types as the source has them", "ALTER TYPE there, as on the source"
    ),
    "collation": Reason(
        "collation_differs",
        "needs collations as the source has them",
        "make them there as on the source",
    ),
}
"""What is compared by more than its name."""


@dataclass(frozen=True, slots=True)
class Locale:
    """Encoding and collation of a database."""

    encoding: str
    collate: str
    ctype: str
    provider: str
    locale: str | None

    def __str__(self) -> str:
        return f"{self.locale or self.collate} ({self.encoding})"


@dataclass(frozen=True, slots=True)
class Structure:
    """Definitions by kind and name, and the database's locale; None where it is not there."""

    there: Mapping[str, Mapping[str, str]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS}
    )
    locale: Locale = Locale("UTF8", "C", "C", "c", None)
    monetary: str = "C"
    """The lc_monetary with which the stream's session here writes or reads values of type money."""


def look_at_source(context: Context) -> Structure:
    """Ask the source what the moved schemas refer to; raises Unknown of one that is too old."""
    identities.require_streams(context)
    given = {"schemas": list(context.plan.schemas)}
    names: dict[str, list[str]] = defaultdict(list)
    for kind, name in context.session.execute(STREAM["needs"], given):
        names[kind].append(name)
    return _read(context.session, names, context.topology.database.replication_user)


def look_at_target(context: Context) -> Structure:
    """Ask the target for what the source has of these names."""
    names = context.need(look_at_source).there
    return _read(context.member, names, context.topology.database.user)


def _read(session: Connection, names: Mapping[str, object], role: str) -> Structure:
    given = {kind: list(names.get(kind, ())) for kind in KINDS}  # type: ignore[call-overload]  # lists, or keys
    there: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for kind, name, definition in session.execute(STREAM["definitions"], given):
        there[kind][name] = definition
    (monetary,) = queries.one(session, STREAM["monetary"], {"role": role})
    return Structure(there, Locale(*queries.one(session, STREAM["locale"])), monetary)


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a target on which the structure cannot be made, or would mean something else."""
    source, target = context.need(look_at_source), context.need(look_at_target)
    plan = context.plan
    for kind in KINDS:
        here, there = source.there[kind], target.there[kind]
        lacking = [name for name in here if name not in there]
        different = [
            f"{name} ({there[name]}, and node {plan.source} has {definition})"
            for name, definition in here.items()
            if name in there and _unfit(kind, definition, there[name])
        ]
        for reasons, names in ((_MISSING, lacking), (_DIFFERS, different)):
            if names:
                code, what, hint = reasons[kind]
                said = f"the structure of moved shards {what}: {listed(names)}"
                yield TargetUnfit(plan.target, code, said, hint=hint)
    yield from _judge_locale(context, source.locale, target.locale)
    tables = context.need(kinds.look).money
    if tables and _alike(source.monetary) != _alike(target.monetary):
        yield TargetUnfit(
            plan.target,
            "lc_monetary",
            f"it would read amounts of money by lc_monetary = {target.monetary}, and node "
            f"{plan.source} writes them by {source.monetary}: {listed(tables)}",
            hint=f"ALTER ROLE {quote_identifier(context.topology.database.user)} SET lc_monetary "
            f"there, to that of the sessions of {context.topology.database.replication_user} on "
            f"node {plan.source}, or use --method clone",
        )


def _judge_locale(context: Context, source: Locale, target: Locale) -> Iterator[TargetUnfit]:
    yield from unlike(context.plan.source, source, context.plan.target, target)


def unlike(peer: str, source: Locale, node: str, target: Locale) -> Iterator[TargetUnfit]:
    """Refuse a node whose database has another encoding or locale than that of a `peer`."""
    if source.encoding != target.encoding:
        yield TargetUnfit(
            node,
            "encoding",
            f"its database has the encoding {target.encoding}, and that of node {peer} has "
            f"{source.encoding}",
            hint="make its database again with the same encoding, or choose another target",
        )
    elif _plain(source) != _plain(target):
        yield TargetUnfit(
            node,
            "locale",
            f"its database sorts texts as {target}, and that of node {peer} as {source}",
            hint="make its database again with the same locale, or choose another target",
        )


def notes(context: Context) -> Iterator[str]:
    """Say which extensions are newer on the target."""
    source, target = context.need(look_at_source), context.need(look_at_target)
    newer = [
        f"{name} {there} (here {version})"
        for name, version in source.there["extension"].items()
        if (there := target.there["extension"].get(name, version)) != version
    ]
    if newer:
        yield f"extensions are newer on node {context.plan.target}: {listed(newer)}"


def _unfit(kind: str, source: str, target: str) -> bool:
    """Return whether a definition cannot replace the other; a newer extension can."""
    if kind == "extension":
        return version(target) < version(source)
    return source != target


def version(text: str) -> tuple[int, ...]:
    """Read the numbers of an extension's version.

    >>> version("1.10") > version("1.9"), version("3.4.2dev")
    (True, (3, 4, 2))
    """
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _plain(locale: Locale) -> tuple[str, ...]:
    """Give a locale as all systems would write it: en_US.utf8 is en_US.UTF-8."""
    parts = (locale.provider, locale.collate, locale.ctype, locale.locale or "")
    return tuple(map(_alike, parts))


def _alike(name: str) -> str:
    return name.lower().replace("-", "")
