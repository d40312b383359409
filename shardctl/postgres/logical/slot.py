"""A logical replication slot, made with the snapshot where its stream begins."""

from __future__ import annotations

import dataclasses
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.errors import Refused
from shardctl.postgres import blocking, cancelling, slots
from shardctl.postgres.sending import Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.route import Route

_LOOK_S = 0.25


@contextmanager
def make(
    route: Route,
    name: str,
    *,
    watch: Connection,
    lock_timeout_s: float = 600.0,
    report: Callable[[Holder], None] = lambda _: None,
) -> Iterator[str]:
    """Make the slot on the route's source, and hold the snapshot with which it begins: its name.

    That ends with the block.

    The slot stays. It waits for every transaction of the whole server that has written and not
    ended, for at most `lock_timeout_s` each. `report` gets each that is in the way, once; `watch`
    is another session with that server. On Ctrl-C, and when `report` raises, there is no slot.
    Raises slot_blocked, slot_taken, NodeUnavailable.
    """
    options = {**route.database.options, "replication": "database"}
    replicating = dataclasses.replace(
        route, database=dataclasses.replace(route.database, options=options)
    )
    with closing(replicating.connect(route.source)) as session:
        timeout = sql.Literal(f"{int(lock_timeout_s * 1000)}ms")
        session.execute(sql.SQL("SET lock_timeout = {}").format(timeout))
        statement = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export')")
        seen: list[Holder] = []

        def see(one: Holder) -> None:
            if one not in seen:
                seen.append(one)
                report(one)

        try:
            snapshot = _run(session, statement.format(sql.Identifier(name)), watch, see)
        except psycopg.errors.LockNotAvailable as error:
            raise _blocked(route.source.name, name, lock_timeout_s, seen[-1:]) from error
        except psycopg.errors.DuplicateObject as error:
            raise slots.taken(name, "there is one of this name already") from error
        yield snapshot


def _run(
    session: Connection,
    statement: sql.Composed,
    watch: Connection,
    see: Callable[[Holder], None],
) -> str:
    """Send the command, and look at what it waits for until it is answered."""
    sent = Sent(session, statement)
    try:
        while not sent.answered(_LOOK_S):
            for _, one in blocking.holders(watch, [session.info.backend_pid]):
                see(one)
    except BaseException:
        # The server goes on waiting after its client is gone; a cancel ends that, and the slot.
        cancelling.cancel(session)
        with suppress(psycopg.Error):
            sent.rows()
        raise
    (((_, _, snapshot, _),),) = sent.rows()
    return snapshot or ""


def _blocked(node: str, name: str, seconds: float, last: list[Holder]) -> Refused:
    who = str(last[0]) if last else "a transaction that has written"
    return Refused(
        "slot_blocked",
        f"node {node}: replication slot {name} could not be made: {who} did not end within "
        f"{seconds:g} s",
        hint="end that transaction (find it in pg_stat_activity by xact_start, or in "
        "pg_prepared_xacts), then run `shardctl moves resume`",
    )
