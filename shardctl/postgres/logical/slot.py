"""A logical replication slot: made with the snapshot where its stream begins, measured, dropped."""

from __future__ import annotations

import dataclasses
import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.errors import Interrupted, Refused
from shardctl.postgres import blocking, cancelling, queries, slots
from shardctl.postgres.sending import Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.route import Route

PLUGIN = "pgoutput"

_QUERIES = queries.load("shardctl.postgres.logical", "slot.sql")
_LOCK_TIMEOUT_S = 600.0
_LOOK_S = 0.25
_POLL_S = 0.01


@contextmanager
def make(
    route: Route,
    name: str,
    *,
    watch: Connection,
    lock_timeout_s: float | None = None,
    report: Callable[[Holder], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Iterator[str]:
    """Make the slot on the route's source, and hold the snapshot with which it begins: its name.

    That ends with the block.

    The slot stays. It waits for every transaction of the whole server that has written and not
    ended, for at most `lock_timeout_s` (ten minutes) each. `report` gets each that is in the way,
    once; `watch` is another session with that server. When `stop` is set, and on Ctrl-C, there is
    no slot.
    Raises Interrupted, slot_blocked, slot_taken, NodeUnavailable.
    """
    stop = stop or threading.Event()
    lock_timeout_s = _LOCK_TIMEOUT_S if lock_timeout_s is None else lock_timeout_s
    options = {**route.database.options, "replication": "database"}
    replicating = dataclasses.replace(
        route, database=dataclasses.replace(route.database, options=options)
    )
    with closing(replicating.connect(route.source)) as session:
        timeout = sql.Literal(f"{int(lock_timeout_s * 1000)}ms")
        session.execute(sql.SQL("SET lock_timeout = {}").format(timeout))
        statement = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL {} (SNAPSHOT 'export')").format(
            sql.Identifier(name), sql.SQL(PLUGIN)
        )
        seen: list[Holder] = []

        def see(one: Holder) -> None:
            if one not in seen:
                seen.append(one)
                report(one)

        try:
            snapshot = _run(session, statement, watch, see, stop)
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
    stop: threading.Event,
) -> str:
    """Send the command, and look at what it waits for until it is answered."""
    sent = Sent(session, statement)
    try:
        while not sent.answered(_LOOK_S):
            _heed(stop)
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


def _heed(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted(
            "stopped while a replication slot was being made; there is none",
            hint="`shardctl moves resume` makes it again, `shardctl moves abort` ends the move",
        )


def drop(session: Connection, name: str, *, patience_s: float = slots.PATIENCE) -> bool:
    """Drop the slot, and return whether there was one; what streams from it is ended.

    Drop the subscription first: its worker would come back. Raises slot_taken where the slot is
    of another kind, or still in use after `patience_s`.
    """
    found = slots.look(session, name)
    if found is None:
        return False
    if found[1] != PLUGIN:
        raise slots.taken(
            name, f"is a {found[0]} one" + (f" of plugin {found[1]}" if found[1] else "")
        )
    deadline = time.monotonic() + patience_s
    while True:
        session.execute(_QUERIES["end_user"], {"name": name})
        try:
            return session.execute(_QUERIES["drop"], {"name": name}).fetchone() is not None
        except psycopg.errors.UndefinedObject:  # another shardctl was quicker
            return False
        except psycopg.errors.ObjectInUse as error:
            if time.monotonic() > deadline:
                raise slots.taken(name, f"is still in use after {patience_s:g} s") from error
        time.sleep(_POLL_S)


def _blocked(node: str, name: str, seconds: float, last: list[Holder]) -> Refused:
    who = str(last[0]) if last else "a transaction that has written"
    return Refused(
        "slot_blocked",
        f"node {node}: replication slot {name} could not be made: {who} did not end within "
        f"{seconds:g} s",
        hint="end that transaction (find it in pg_stat_activity by xact_start, or in "
        "pg_prepared_xacts), then run `shardctl moves resume`",
    )
