"""Server parameters that lose data, and those of roles that are not alike."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks.check import ERROR, NOTE, QUERIES, Check, Rule, Rules, Severity
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.postgres.catalog import RoleSettings
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

RULES = Rules(
    "settings",
    {
        "unsafe": Rule(
            ERROR,
            "{value}: {harm}",
            "{right}",
            "run `ALTER SYSTEM SET {object} = {right}`, then `SELECT pg_reload_conf()`",
        ),
        "role_setting_differs": Rule(
            NOTE + ERROR,
            "{actual}",
            "{usual}, as on node {model}",
            catalog.SET_ALIKE,
        ),
    },
)


class Seen(NamedTuple):
    """The parameters of one node that risk data, as of `unsafe`; and those of its roles."""

    unsafe: Sequence[tuple[str, str, str, str]]
    roles: RoleSettings


def unsafe(session: Connection) -> list[tuple[str, str, str, str]]:
    """Let the server say which parameters risk data: name, value, right value and harm."""
    return session.execute(QUERIES["unsafe_settings"]).fetchall()


def look(place: Place) -> Seen:
    """Let the server say what is wrong, and read with what roles' sessions begin."""
    return Seen(
        unsafe(place.connection),
        catalog.read_role_settings(place.connection, place.topology.database),
    )


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find parameters that lose data, and settings of roles that are not alike."""
    for node, seen in view.seen.items():
        for name, value, right, harm in seen.unsafe:
            yield RULES.finding(
                "unsafe", node=node, object=name, value=value, right=right, harm=harm
            )
    yield from _roles({node: seen.roles for node, seen in view.seen.items()})


def _roles(of: Mapping[NodeName, RoleSettings]) -> Iterator[Finding]:
    """Find settings with which applications' sessions begin on some nodes only.

    A move takes a role's shards to a node with other settings; `generator` reports missing roles.
    """
    for role in sorted({role for roles in of.values() for role in roles}):
        settings = {node: roles[role] for node, roles in of.items() if role in roles}
        for name in sorted({name for one in settings.values() for name in one}):
            values = {node: one.get(name) for node, one in settings.items()}
            (usual, _), *_ = Counter(values.values()).most_common()
            model = next(node for node, value in values.items() if value == usual)
            for node, value in values.items():
                if value != usual:
                    yield RULES.finding(
                        "role_setting_differs",
                        Severity.error if name in catalog.DECISIVE else Severity.note,
                        node=node,
                        object=f"{name} of role {role}",
                        actual=catalog.shown_setting(name, value),
                        usual=catalog.shown_setting(name, usual),
                        model=model,
                    )


CHECK = Check(
    RULES, "no parameter risks data, and roles have the same ones everywhere", judge, look
)
