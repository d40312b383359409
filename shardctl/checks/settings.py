"""Server parameters that lose data, and those of roles that are not alike."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks.check import ERROR, NOTE, Check, Rule, Rules, Severity
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.postgres.catalog import RoleSettings
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
    """The findings about parameters of one node; and the settings of its roles."""

    unsafe: Sequence[Finding]
    roles: RoleSettings


def look(place: Place) -> Seen:
    """Let the server say what is wrong, and read with what roles' sessions begin."""
    roles = catalog.read_role_settings(place.connection, place.topology.database)
    return Seen(RULES.ask(place, "unsafe_settings"), roles)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find parameters that lose data, and settings of roles that are not alike."""
    for seen in view.seen.values():
        yield from seen.unsafe
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
