"""What a transaction changed on the source behind the fence without a lock that a fence sees.

One that makes a function, an enum or a domain, or grants rights on a table, may hold no lock in
the schema. If it was open while the fence went up and committed later, the target does not have
its change. No row is lost with it, so a notice names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.moves.confirm_sessions import QUERIES
from shardctl.moves.refusals import listed

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
    """Notice definitions that the source has and the target did not have at the cutover.

    `schemas` are the moved ones under the names that each node has for them.
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
        f"node {plan.source}: a transaction that was open during the cutover has made or changed "
        f"{listed(names)}, and node {plan.target} does not have that: repeat it there"
    )
