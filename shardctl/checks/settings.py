"""Server parameters that lose data, and those of roles that are not alike."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, NOTE, Check, Rule, Rules, Severity
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.check import Finding, Place, View
    from shardctl.postgres.catalog import RoleSettings

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


def look(place: Place) -> RoleSettings:
    """Let the server say what is wrong, and read with what roles' sessions begin."""
    RULES.ask(place, "unsafe_settings")
    return catalog.read_role_settings(place.connection, place.topology.database)


def judge(view: View[RoleSettings]) -> Iterator[Finding]:
    """Find settings with which applications' sessions begin on some nodes only.

    A move takes a role's shards to a node with other settings; `generator` reports missing roles.
    """
    for role in sorted({role for roles in view.seen.values() for role in roles}):
        settings = {node: roles[role] for node, roles in view.seen.items() if role in roles}
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
