"""The operator's own checks: a query that must return true in every changed shard."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import sql

from shardctl import fanout
from shardctl.errors import Interrupted, UsageError
from shardctl.libpq import reason_of
from shardctl.postgres import split
from shardctl.postgres.connection import connect
from shardctl.provision import shard as ddl
from shardctl.state import lock
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.cancelling import Running
    from shardctl.postgres.connection import Connection
    from shardctl.state.rollouts import Brakes
    from shardctl.topology.model import NodeName, ShardId, Topology

_LOCK_MS = 2000


class Failed(NamedTuple):
    """A query that did not return true in a shard."""

    node: NodeName
    shard: ShardId
    check: str
    what: str


def require_query(check: str) -> None:
    """See that a check is one query; raises UsageError.

    Of several statements only the first one's result would count.
    """
    found = split.split(check)
    if len(found) != 1 or found[0].first_words[:1] == ("COPY",):
        raise UsageError(
            f"--check {' '.join(check.split())[:80]!r} is not one query",
            hint="specify one query that returns true, such as 'SELECT count(*) = 0 FROM photos "
            "WHERE likes IS NULL'; repeat --check for each further one",
        )


def run(
    topology: Topology,
    shards: Mapping[NodeName, Sequence[ShardId]],
    brakes: Brakes,
    *,
    jobs: int,
    command: str,
    progress: Progress,
    running: Running,
) -> list[Failed]:
    """Ask the checks in shards, over so many sessions a node; give what was not true.

    The first that fails ends the rest, which are not asked. Raises Interrupted after Ctrl-C,
    and NodeUnavailable.
    """
    if not brakes.checks:
        return []
    stop = threading.Event()
    parts = [
        (node, part)
        for node, chosen in shards.items()
        for number in range(jobs)
        if (part := chosen[number::jobs])
    ]
    for node, chosen in shards.items():
        progress.expect(node, "checking", len(chosen), "shards")

    def work(part: tuple[NodeName, Sequence[ShardId]]) -> list[Failed]:
        node, chosen = part
        purpose = lock.purpose(command)
        with connect(topology.nodes[node], topology.database, purpose=purpose) as session:
            session.read_only = True
            with running.statement(session):
                return list(_ask(session, topology, node, chosen))

    def _ask(
        session: Connection, topology: Topology, node: NodeName, chosen: Iterable[ShardId]
    ) -> Iterator[Failed]:
        for shard in chosen:
            for check in brakes.checks:
                if stop.is_set():
                    return
                what = _answer(session, topology.schema(shard), check, brakes.check_timeout_ms)
                if what is not None:
                    yield Failed(node, shard, check, what)
                    stop.set()
            progress.advance(node)

    try:
        outcomes = fanout.run(parts, work, width=max(1, len(parts)), cancel=running.cancel)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(
            "interrupted while the checks ran: no further wave was begun",
            hint="run `shardctl migrate --continue` to check again and to go on",
        ) from interrupt
    return [failed for outcome in outcomes for failed in outcome.result()]


def _answer(session: Connection, schema: str, check: str, timeout_ms: int) -> str | None:
    """Ask a query in a shard; say what it returned instead of true."""
    timeout = sql.SQL("SET LOCAL statement_timeout TO {};").format(sql.Literal(timeout_ms))
    slate = ddl.clean_slate(schema, _LOCK_MS) + timeout
    try:
        session.execute(slate)
        cursor = session.execute(check.encode())
        rows = cursor.fetchmany(2) if cursor.description else None
        session.commit()  # a rollback would count as a failed transaction of the node
    except psycopg.errors.QueryCanceled as error:
        if "statement timeout" not in reason_of(error):
            return reason_of(error)
        return f"did not end within {timeout_ms / 1000:g} s"
    except psycopg.Error as error:
        return reason_of(error)
    finally:
        if not session.closed:
            session.rollback()
    return judge(rows)


def judge(rows: Sequence[Sequence[Any]] | None) -> str | None:
    """Say what is wrong with the answer to a check; None: it is true. Pure.

    >>> judge([(True,)])
    >>> [judge(rows) for rows in (None, [], [(None,)], [(False,)], [(1,)], [(True,), (True,)])]
    ['returned no rows', 'returned no rows', 'returned NULL', 'returned false', 'returned 1, \
which is not a boolean', 'returned more than one value']
    """
    if not rows:
        return "returned no rows"
    if len(rows) > 1 or len(rows[0]) > 1:
        return "returned more than one value"
    (value,) = rows[0]
    if value is True:
        return None
    if value is None:
        return "returned NULL"
    if value is False:
        return "returned false"
    return f"returned {str(value)[:40]}, which is not a boolean"


def described(found: Sequence[Failed]) -> Iterator[str]:
    """Say what failed, once for each check and reason, with the shards."""
    alike: dict[tuple[str, str], list[Failed]] = {}
    for one in found:
        alike.setdefault((one.check, one.what), []).append(one)
    for (check, what), same in alike.items():
        nodes = ", ".join(dict.fromkeys(one.node for one in same))
        shards = ranges.of(one.shard for one in same)
        yield f"shard {shards} on node {nodes}: check {' '.join(check.split())[:80]!r} {what}"
