"""Calls of one shard, where shards are that a statement did not find, and the newest map.

A newer map is believed where each node that loses shards by it confirms that: by its own map, or
because it has their schemas no more. Else one node, once somebody else has it, could draw the
shards of all others to itself. A node that does not answer confirms it, too: it may be gone for
good, and its shards are served by nobody meanwhile.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from shardctl.router import core, places, statements
from shardctl.router.concurrency import Lock, Workers, held, myself, sleep
from shardctl.router.core import Routed
from shardctl.router.errors import (
    FENCED,
    FENCED_WITHIN,
    REPEATABLE,
    AnotherCluster,
    Look,
    MapUnread,
    MapWentBack,
    NoConnection,
    NodeUnknown,
    ShardMoved,
    WritesUnseen,
    id_given,
    is_of,
    keys_not_ids,
    pauses,
    reasons,
)
from shardctl.router.threads.nodes import Nodes
from shardctl.state import map as maps
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from shardctl.router.places import Known, Source
    from shardctl.router.statements import Answer, Names, Parameters, Row, Where
    from shardctl.state.map import NodeMap
    from shardctl.topology.keys import Key
    from shardctl.topology.model import NodeName

_STANDING = (
    b"SELECT nspname::text FROM pg_catalog.pg_namespace WHERE nspname = ANY (%s)"
    b" AND pg_catalog.has_schema_privilege(oid, 'USAGE')"
)
_FRESH_S = 0.01
"""How old another caller's answer may be to be used again."""
_ASK_S = 2.0
"""The least time for a node to answer; a node that hangs delays callers no longer than this."""

Result = TypeVar("Result")


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
            raise ShardMoved(shard, node, self._known.map.owners[shard])

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
        schemas = {self._known.schemas[shard]: shard for shard in shards}
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


class OneShard(Routed):
    """A sharded database, as far as one shard is asked."""

    def _set_up(self) -> None:
        self._workers = Workers()
        self._nodes = Nodes(self._known, self._settings)
        self._fence = Fence(self._known, self._nodes, self._workers)

    def select(
        self,
        fields: Names,
        table: str,
        shard_key: Key,
        where: Where | None = None,
        parameters: Parameters = None,
        order_by: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """Read rows of a key's shard: a list of tuples, in the order of `fields`.

        `order_by` is a field or a list of them, with a minus sign in front for descending order.

            db.select(["id", "caption"], "photos", user, "id > %s", [last], "-id", 30)
        """
        shard = self._known.map.shard_of(shard_key)
        statement = statements.select(
            table,
            statements.terms(fields),
            statements.condition(where, parameters),
            statements.orders(order_by),
            statements.number(limit),
        )
        return self._on_shard("select", table, shard, statement, parameters).rows

    def insert(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        returning: Names | None = "id",
    ) -> Any:
        """Write a row into a key's shard; give the field that is `returning`.

        A tuple where `returning` is a list, and None where it is None, or where a trigger or a
        rule has left the row out.

            photo = db.insert("photos", user, {"user_id": user, "caption": "dusk"})
        """
        return self._insert("insert", self._known.map.shard_of(shard_key), table, values, returning)

    def insert_new(self, table: str, values: Mapping[str, Any], returning: Names = "id") -> Any:
        """Write a row whose id is its key, into a shard that is chosen evenly; give the id.

        `returning` is as of `insert`, and its first field is the id. Raises keys_not_ids without
        `shards: {key: id}` in the topology, and id_given.

            user = db.insert_new("users", {"name": "Ada"})
        """
        if (rule := self._known.map.key_rule) != "id":
            raise keys_not_ids(rule)
        identity = statements.terms(returning)[0]
        if identity in values:
            raise id_given(identity)
        # From the system: the state of a generator of our own would be the same in forked children.
        shard = ShardId(secrets.randbelow(len(self._known.map.owners)))
        return self._insert("insert_new", shard, table, values, returning)

    def update(
        self,
        table: str,
        shard_key: Key,
        values: Mapping[str, Any],
        where: Where,
        parameters: Parameters = None,
        returning: Names | None = None,
    ) -> Any:
        """Change rows of a key's shard; give how many.

        With `returning`, a list of tuples of these fields instead.

            db.update("photos", user, {"caption": "dusk"}, "id = %s", [photo])
        """
        shard = self._known.map.shard_of(shard_key)
        text = statements.condition(where, parameters) or ""
        named, back = isinstance(parameters, Mapping), statements.terms(returning or ())
        statement = statements.update(table, tuple(values), text, named, back)
        given = statements.with_values(values, parameters)
        answer = self._on_shard("update", table, shard, statement, given)
        return answer.touched if returning is None else answer.rows

    def delete(
        self,
        table: str,
        shard_key: Key,
        where: Where,
        parameters: Parameters = None,
        returning: Names | None = None,
    ) -> Any:
        """Remove rows of a key's shard; give how many.

        With `returning`, a list of tuples of these fields instead.

            db.delete("photos", user, "id = %s", [photo], returning="image_url")
        """
        shard = self._known.map.shard_of(shard_key)
        text = statements.condition(where, parameters) or ""
        statement = statements.delete(table, text, statements.terms(returning or ()))
        answer = self._on_shard("delete", table, shard, statement, parameters)
        return answer.touched if returning is None else answer.rows

    @contextlib.contextmanager
    def shard(
        self, shard_key: Key | None = None, *, number: int | None = None
    ) -> Iterator[psycopg.Connection[Any]]:
        """Give a connection in a transaction in which unqualified names are a shard's.

        The shard is that of a key, or has the `number`. The transaction commits at the end of the
        block, and rolls back where that raises. Raises ShardMoved where the shard moved during
        the transaction: nothing was written, and the transaction can be run again.

            with db.shard(user) as connection:
                connection.execute("UPDATE photos SET caption = 'dusk'")
        """
        shard = self._shard(shard_key, number)
        self._require_committed([shard])
        node = self._known.map.owners[shard]
        begin = statements.begin(self._known.schemas[shard])
        try:
            with self._told("shard", None, node, [shard]):
                with self._nodes.transaction(node, begin) as connection:
                    with self._noted(myself(), shard, connection):
                        yield connection
        except psycopg.Rollback as error:  # as psycopg's own transactions do
            if error.transaction is not None:
                raise
        except Exception as error:
            if is_of(error, FENCED_WITHIN):
                self._fence.require_unmoved(node, shard)
            raise

    def transaction(
        self,
        shard_key: Key,
        work: Callable[..., Result],
        *args: Any,
        attempts: int = 3,
    ) -> Result:
        """Call `work` with a connection as of `shard()`, and `args`; give what it returns.

        Where its shard has moved, and after a deadlock or a serialization failure, nothing of it
        was written: it is called again, up to `attempts` times in all. So it should do nothing
        outside the database that may not be done twice. Raises what the last attempt raised.

            db.transaction(user, like, photo)
        """
        for left in reversed(range(attempts)):
            try:
                with self.shard(shard_key) as connection:
                    return work(connection, *args)
            except Exception as error:
                if not left or not is_of(error, REPEATABLE):
                    raise
        raise ValueError(f"attempts: expected a number from 1, found {attempts}")

    def execute(
        self,
        statement: Where,
        parameters: Parameters = None,
        shard_key: Key | None = None,
        *,
        number: int | None = None,
    ) -> psycopg.ClientCursor[Any]:
        """Run SQL of the application's own in a shard; give a cursor with its whole answer.

        Unqualified names are the shard's, which is that of a key, or has the `number`. It is a
        transaction of its own and one message: psycopg writes the parameters into the statement,
        as its `ClientCursor` does.

            db.execute("SELECT count(*) FROM photos WHERE user_id = %s", [user], user)
        """
        shard = self._shard(shard_key, number)
        text = statement if isinstance(statement, str) else statement.as_string(None)
        whole = (
            statements.within(self._known.schemas[shard], parameters is not None) + text.encode()
        )
        run = partial(self._nodes.cursor, statement=whole, parameters=parameters)
        return self._where_it_is("execute", None, shard, run, FENCED_WITHIN)

    def _insert(
        self,
        call: str,
        shard: ShardId,
        table: str,
        values: Mapping[str, Any],
        returning: Names | None,
    ) -> Any:
        back = () if returning is None else statements.terms(returning)
        statement = statements.insert(table, tuple(values), back)
        answer = self._on_shard(call, table, shard, statement, tuple(values.values()))
        row = answer.rows[0] if answer.rows else None
        return row[0] if row and isinstance(returning, str) else row

    def _on_shard(
        self, call: str, table: str, shard: ShardId, statement: bytes, parameters: Parameters
    ) -> Answer:
        """Run a statement on its shard's node; once more if the shard was missing there."""
        given = () if parameters is None else parameters
        statement = statements.of_shard(statement, self._known.schemas[shard])
        run = partial(self._nodes.execute, statement=statement, parameters=given)
        return self._where_it_is(call, table, shard, run)

    def _where_it_is(
        self,
        call: str,
        table: str | None,
        shard: ShardId,
        run: Callable[[NodeName], Result],
        fenced: tuple[type[psycopg.Error], ...] = FENCED,
    ) -> Result:
        """Do what is one transaction on a shard's node; once more if it was missing there."""
        self._require_committed([shard])
        node = self._known.map.owners[shard]
        try:
            with self._told(call, table, node, [shard]):
                return run(node)
        except fenced:
            # The statement was refused, so that it may be sent again: nothing was written.
            if self._fence.look(node, [shard]) is Look.AWAY:
                raise
        node = self._known.map.owners[shard]
        with self._told(call, table, node, [shard], repeated=True):
            answer = run(node)
        self._known.count_repeated()
        return answer

    def _require_committed(self, shards: Sequence[ShardId]) -> None:
        """In a test fleet, see that no session has open changes of these; raises WritesUnseen.

        A session whose client does nothing for a second waits for this call: the same test has
        begun its transaction. That of another thread or task ends, or goes on, meanwhile.
        """
        if not self._known.in_tests:
            return
        for node, part in self._known.by_node(shards).items():
            lasting = None
            until = time.monotonic() + core.LASTING_S
            schemas = [self._known.schemas[shard] for shard in part]
            for pause in pauses():
                found = set(self._nodes.execute(node, core.CHANGED, [schemas]).rows)
                lasting = found if lasting is None else lasting & found
                if not lasting:
                    break
                if time.monotonic() >= until:
                    schema, pid, name, _ = min(lasting)
                    raise WritesUnseen(ShardId(self._known.schemas.index(schema)), (pid, name))
                sleep(pause)
