"""Where shards are that a statement did not find, and the newest map on the nodes.

A newer map is believed where each node that loses shards by it confirms that: by its own map, or
because it has their schemas no more. Else one node, once somebody else has it, could draw the
shards of all others to itself. A node that does not answer confirms it, too: it may be gone for
good, and its shards are served by nobody meanwhile.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.router import places
from shardctl.router.concurrency import Lock, Workers, held, sleep
from shardctl.router.errors import (
    AnotherCluster,
    MapUnread,
    MapWentBack,
    NoConnection,
    NodeUnknown,
    ShardMoved,
)
from shardctl.router.refusals import Look, pauses, reasons
from shardctl.state import map as maps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shardctl.router.known import Known
    from shardctl.router.places import Source
    from shardctl.router.statements import Answer
    from shardctl.router.threads.nodes import Nodes
    from shardctl.state.map import NodeMap
    from shardctl.topology.model import NodeName, ShardId

_STANDING = (
    b"SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname = ANY (%s)"
    b" AND pg_catalog.has_schema_privilege(oid, 'USAGE')"
)
_FRESH_S = 0.01
"""How old another caller's answer may be to be used again."""
_ASK_S = 2.0
"""The least time for a node to answer; a node that hangs delays callers no longer than this."""


class Fence:
    """Asks nodes for shards and maps; one question for the map serves all who wait for it."""

    def __init__(self, known: Known, nodes: Nodes, workers: Workers) -> None:
        self._known = known
        self._nodes = nodes
        self._workers = workers
        self._alone = Lock()

    def begin(self, source: Source | None) -> None:
        """Read the first map, unless that was done; raises MapUnread, and psycopg's errors."""
        if self._known.found is None and source is not None:
            with self._alone:
                if self._known.found is None:
                    self._begin(source)

    def look(self, node: NodeName, shards: Collection[ShardId], until: float | None = None) -> Look:
        """Find out where shards are that a statement on `node` did not find.

        While a schema is fenced and no map names its new node, a move is at its cutover: the map
        is read again, and the node asked again (the cutover may be undone), for as long as the
        router's patience, and until `until` at the most.
        """
        known = self._known
        deadline = time.monotonic() + known.patience_s
        deadline = deadline if until is None else min(deadline, until)
        here = known.still(node, shards)  # another caller may have read the map in between
        away = self._fenced(node, here, deadline, until) if here else []
        if not away:
            return Look.STANDS if len(here) == len(shards) else Look.SETTLED
        waits = pauses()
        while True:
            came = time.monotonic()
            with held(self._alone, until) as alone:
                if alone:
                    self._newest(node, away, came, until)
            away = known.still(node, away)
            if away:
                away = self._fenced(node, away, deadline, until)
            if not away:
                return Look.SETTLED
            left = deadline - time.monotonic()
            if left <= 0:
                return Look.AWAY
            sleep(min(next(waits), left))

    def require_unmoved(self, node: NodeName, shard: ShardId) -> None:
        """Look whether a transaction on `node` met the fence; raises ShardMoved if so."""
        if self.look(node, [shard]) is Look.SETTLED:
            raise ShardMoved(shard, node, self._known.owner(shard))

    def reread(self) -> None:
        """Read the map again; raises MapUnread where no node returns it.

        Raises MapWentBack where the newest map of all nodes is older than the known one.
        """
        outcomes = self._ask(self._known.owning(), moved=None)
        versions = [one.map.version for one in outcomes if isinstance(one, maps.NodeMap)]
        if not versions:
            raise MapUnread(reasons(outcomes))
        # A node that was away while shards moved between others has an older map.
        everyone = len(versions) == len(outcomes)
        if everyone and max(versions) < self._known.map.version:
            raise MapWentBack(self._known.map.version, max(versions))

    def _begin(self, source: Source) -> None:
        conninfo = places.asked(source.keywords)
        try:
            answer = self._nodes.outwaited(lambda _: self._nodes.ask(conninfo, maps.READ))
        except psycopg.Error as error:
            raise MapUnread(reasons([error])) from error
        if (reported := _reported(answer)) is None:
            raise MapUnread(reasons([reported]))
        self._known.begin(reported.map, places.of_source(source, reported))

    def _fenced(
        self,
        node: NodeName,
        shards: Collection[ShardId],
        deadline: float,
        limit: float | None = None,
    ) -> list[ShardId]:
        """Give the shards whose schemas are missing or closed on a node; all, without an answer."""
        schemas = {self._known.schema(shard): shard for shard in shards}
        until = max(deadline, _given_up(limit))
        try:
            answer = self._nodes.execute(node, _STANDING, [list(schemas)], until=until, short=True)
        except (psycopg.OperationalError, NoConnection, TimeoutError):
            # It may be gone since the shards have moved; then a map names their node.
            return list(shards)
        standing = {schema for (schema,) in answer.rows}
        return [shard for schema, shard in schemas.items() if schema not in standing]

    def _newest(
        self, node: NodeName, shards: Collection[ShardId], came: float, limit: float | None
    ) -> None:
        """Read the map, unless another caller just did, or found where these shards of `node` are.

        `came` is when this caller asked, and `limit` when it has no more time.
        """
        known = self._known
        if known.asked_at > came - _FRESH_S or not known.still(node, shards):
            return
        known.asked_at = time.monotonic()
        version = known.map.version
        moved = partial(self._moved, node, shards)
        self._ask(known.owning(), moved=moved, limit=limit)
        if known.map.version != version:
            return
        # The target owned nothing until now. It is asked last: where no server listens yet, a
        # pooler would remember the failed login, and make clients wait.
        asked = set(known.others())
        if asked:
            over = partial(self._over_meanwhile, node, shards, asked, limit)
            self._ask(sorted(asked), moved=moved, asked=asked, meanwhile=[over], limit=limit)

    def _over_meanwhile(
        self,
        node: NodeName,
        shards: Collection[ShardId],
        asked: Collection[NodeName],
        limit: float | None,
    ) -> bool:
        """Watch, while nodes of `asked` have not answered, whether the shards' cutover ends.

        A spare node that is not running may never answer, and another node may be the target.
        """
        known = self._known
        version = known.map.version
        until = _given_up(limit)
        waits = pauses()
        while asked and time.monotonic() < until:
            sleep(next(waits))
            known.asked_at = time.monotonic()
            moved = partial(self._moved, node, shards)
            self._ask(known.owning(), moved=moved, limit=limit)
            if known.map.version != version or not self._fenced(node, shards, until, limit):
                return True
        return False

    def _ask(
        self,
        nodes: Sequence[NodeName],
        *,
        moved: Callable[[NodeMap], bool] | None,
        asked: set[NodeName] | None = None,
        meanwhile: Sequence[Callable[[], bool]] = (),
        limit: float | None = None,
    ) -> list[Any]:
        """Ask nodes for the map, all at once, until one has `moved`; keep the newest believed.

        What of `meanwhile` returns True ends it, too. Nodes that have answered leave `asked`, and
        the last of them ends it.
        """

        def enough(reported: object) -> bool:
            newer = moved is not None and isinstance(reported, maps.NodeMap) and moved(reported)
            return newer or reported is True or (asked is not None and not asked)

        until = _given_up(limit)
        calls: list[Callable[[], Any]] = [
            # What is asked again anyway need not outwait a pooler's refusal.
            partial(self._nodes.outwaited, partial(self._of_node, node, asked), until)
            if moved is None
            else partial(self._of_node, node, asked)
            for node in nodes
        ]
        seconds = max(0.0, until - time.monotonic())
        outcomes = self._workers.first([*calls, *meanwhile], enough, seconds)
        for one in outcomes:
            if isinstance(one, AnotherCluster):
                raise one
        self._believe([one for one in outcomes if isinstance(one, maps.NodeMap)], limit)
        return outcomes

    def _moved(self, node: NodeName, shards: Collection[ShardId], reported: NodeMap) -> bool:
        """Return whether a map is newer, and gives one of these shards of `node` to another."""
        owners = reported.map.owners
        return (
            reported.map.version > self._known.map.version
            and reported.node not in self._known.refused
            and any(owners[shard] != node for shard in shards)
        )

    def _believe(self, answers: Sequence[NodeMap], limit: float | None) -> None:
        """Keep the newest map that is confirmed by the nodes that lose shards by it.

        Where none does, by another node that has answered, if there is one: by a version alone,
        maps of later moves would seem old.
        """
        known = self._known
        for one in sorted(answers, key=lambda answer: answer.map.version, reverse=True):
            if one.map.version <= known.map.version:
                return
            losing = known.losing(one.map)
            others = [other.map.version for other in answers if other.node != one.node]
            confirmed = bool(losing) or not others or max(others) >= one.map.version
            for node, shards in losing.items():
                confirmed = confirmed and self._confirms(node, shards, answers, limit)
            if confirmed:
                known.adopt(one.map)
                known.refused.discard(one.node)
                return
            known.refused.add(one.node)

    def _confirms(
        self,
        node: NodeName,
        shards: Collection[ShardId],
        answers: Sequence[NodeMap],
        limit: float | None,
    ) -> bool:
        """Return whether a node confirms that it has these shards no more."""
        own = [one.map.owners for one in answers if one.node == node]
        if own and all(own[0][shard] != node for shard in shards):
            return True
        try:
            gone = self._fenced(node, shards, time.monotonic(), limit)
        except NodeUnknown:
            return True
        return len(gone) == len(shards)

    def _of_node(
        self, node: NodeName, asked: set[NodeName] | None, _: float | None = None
    ) -> NodeMap | None:
        """Ask a node; None without an answer, or if it is a clone, which has its source's name."""
        try:
            answer = self._nodes.ask_node(node, maps.READ, _given_up(None))
        finally:
            if asked is not None:
                asked.discard(node)
        reported = _reported(answer)
        if reported is None or reported.node != node:
            return None
        self._known.require_same(reported)
        return reported


def _reported(answer: Answer) -> NodeMap | None:
    """Take a node's map from its answer; None where init has not finished."""
    return maps.of_row(answer.rows[0]) if answer.rows else None


def _given_up(limit: float | None) -> float:
    """Tell when a node that does not answer is given up: never after a caller's own limit."""
    until = time.monotonic() + _ASK_S
    return until if limit is None else min(until, limit)
