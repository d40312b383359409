"""Definitions that a transaction changed on the source during the cutover, unseen by the fence.

A transaction that creates a function, an enum or a domain, or grants rights on a table, may hold
no lock in the schema. If it was open during the fence and committed later, the target lacks its
change. No row is lost, so a notice reports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.meter import listed
from shardctl.moves.confirm_sessions import QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.moves.confirm_sessions import Sessions
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

_ABOUT = "a system catalog"


def tell(
    sessions: Sessions,
    asked: Mapping[NodeName, Sequence[Connection]],
    schemas: Mapping[NodeName, Sequence[str]],
) -> None:
    """Report definitions that the source has and the target lacked at the cutover.

    `schemas` maps each node to its names of the moved schemas.
    """
    plan, found = sessions.context.plan, {}
    for node, (session, *_) in asked.items():
        there = sql.SQL(", ").join(map(sql.Literal, schemas[node]))
        query = QUERIES["definitions"].format(schemas=there)
        with sessions.context.on(node):
            found[node] = set(sessions.ask(node, session, query, about=_ABOUT))
    changed = found[plan.source] - found[plan.target]
    if not changed:
        return
    query = QUERIES["described"].format(
        classes=sql.Literal([kind for kind, _, _ in changed]),
        objects=sql.Literal([oid for _, oid, _ in changed]),
    )
    with sessions.context.on(plan.source):
        rows = sessions.ask(plan.source, asked[plan.source][0], query, about=_ABOUT)
    names = [name for (name,) in rows]
    sessions.context.notice(
        f"node {plan.source}: a transaction that was open during the cutover created or changed "
        f"{listed(names)}; node {plan.target} lacks this change: repeat it there"
    )
