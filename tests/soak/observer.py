"""Watches nodes and poolers all the time: who owns what, how far moves are, what is paused."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from tests.soak.fleet import NODES, POOLERS, SUPERUSER
from tests.soak.history import Era, Pause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.soak.fleet import Fleet

_EACH_S = 0.15
_AFTER_ERROR_S = 0.3
_UNDOABLE = {"reserved", "undone", "fenced", "drained"}
_FENCED = {"fenced", "drained"}
_OPEN = _UNDOABLE | {"promoting", "claimed", "routed"}
_CLAIMED = {"claimed", "routed", "done", "unconfirmed"}
_MOVES = (
    "SELECT id, CASE WHEN plan ->> 'fence' = 'locked rename' THEN 'stream' ELSE method END,"
    " state, revision, source, target, shards,"
    " coalesce((plan #>> '{options,read_only}')::boolean, false),"
    " coalesce(plan #>> '{reverses,move}', '') FROM shardctl.move"
    " WHERE state NOT IN ('done', 'aborted') OR changed > clock_timestamp() - interval '30 s'"
)
_MAP = (
    "SELECT (SELECT map_version FROM shardctl.cluster), jsonb_object_agg(shard, node)"
    " FROM shardctl.map"
)


@dataclass(slots=True)
class Seen:
    """What was seen of one move."""

    handover: str
    """Its method; `stream` also for a clone that hands over so."""
    source: str
    target: str
    shards: tuple[int, ...]
    read_only: bool
    reverses: str = ""
    """The move that it gives back."""
    state: str = "reserved"
    revision: int = 0
    undoable: float = -math.inf
    """When the last look began that found it undoable on its source."""
    decided: float = math.inf
    """When the first look ended that found it decided or claimed."""
    claimed: float = math.inf
    routed: float = math.inf
    ended: float = math.inf


def closed(moves: Mapping[str, Seen], move: str, node: str) -> float:
    """Tell from when on nothing could be written to what a move has retired on a node.

    A reverse that was aborted has let a stream write to it once more. A clone has all that its
    source has retired, so it may be on any node.
    """
    if (one := moves.get(move)) is None:
        return math.inf
    reverses = [other.ended for other in list(moves.values()) if other.reverses == move]
    return max([one.decided if node == one.source else one.claimed, *reverses])


class Observer:
    """Threads that look, one for each node and pooler."""

    def __init__(self, fleet: Fleet) -> None:
        self.moves: dict[str, Seen] = {}
        self.pauses: list[Pause] = []
        self.connections: dict[str, list[tuple[float, int]]] = defaultdict(list)
        topology = fleet.topology()
        self.first = {int(shard): str(node) for shard, node in topology.owners().items()}
        self._map: tuple[int, dict[int, str]] = (0, self.first)
        self._fleet = fleet
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._paused: dict[tuple[str, str], tuple[float, float]] = {}
        self._threads = [
            *(threading.Thread(target=self._node, args=(node,), daemon=True) for node in NODES),
            *(threading.Thread(target=self._pooler, args=(one,), daemon=True) for one in POOLERS),
        ]
        self._ports = {str(node.name): node.port for node in topology.nodes.values()}
        self._ports |= {str(one.name): one.port for one in topology.poolers.values()}
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def owners(self) -> dict[int, str]:
        """Give the newest map that any node has shown."""
        return self._map[1]

    def open_moves(self) -> dict[str, Seen]:
        """Give the moves that are not over."""
        with self._lock:
            return {move: one for move, one in self.moves.items() if one.state in _OPEN}

    def is_held(self) -> bool:
        """Tell whether clients wait: an alias is paused, or a fence is up that can be lifted."""
        with self._lock:
            fenced = any(one.state in _FENCED for one in self.moves.values())
            return fenced or bool(self._paused)

    def eras(self) -> list[Era]:
        """Give who owned what and when, in the order of the claims."""
        eras = [Era(shard, node) for shard, node in sorted(self.first.items())]
        with self._lock:
            claimed = [one for one in self.moves.values() if one.claimed < math.inf]
        for one in sorted(claimed, key=lambda one: one.claimed):
            stale = one.ended if one.read_only else -math.inf
            eras += [
                Era(shard, one.target, one.undoable, one.claimed, stale) for shard in one.shards
            ]
        return eras

    def closed(self, move: str, node: str) -> float:
        """Tell from when on nothing could be written to what a move has retired on a node."""
        return closed(self.moves, move, node)

    def _node(self, node: str) -> None:
        counted = 0.0
        while not self._stop.is_set():
            try:
                with self._session(node, "app") as session:
                    while not self._stop.wait(_EACH_S):
                        began = time.monotonic()
                        self._note_map(session.execute(_MAP).fetchone())
                        moves = session.execute(_MOVES).fetchall()
                        self._note_moves(node, moves, began, time.monotonic())
                        if began > counted + 1:
                            counted = began
                            query = "SELECT count(*) FROM pg_stat_activity"
                            row = session.execute(query).fetchone()
                            self.connections[node].append((began, row[0] if row else 0))
            except psycopg.Error:
                self._stop.wait(_AFTER_ERROR_S)

    def _pooler(self, pooler: str) -> None:
        while not self._stop.is_set():
            try:
                with self._session(pooler, "pgbouncer") as session:
                    cursor = psycopg.ClientCursor(session)
                    while not self._stop.wait(_EACH_S):
                        began = time.monotonic()
                        cursor.execute("SHOW DATABASES")
                        names = [column.name for column in cursor.description or ()]
                        rows = [dict(zip(names, row, strict=True)) for row in cursor]
                        paused = {row["name"] for row in rows if int(row["paused"])}
                        self._note_paused(pooler, paused, began, time.monotonic())
            except psycopg.Error:
                self._stop.wait(_AFTER_ERROR_S)

    def _session(self, name: str, dbname: str) -> psycopg.Connection[Any]:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self._ports[name], "dbname": dbname}
        given: dict[str, Any] = {"connect_timeout": 3, "application_name": "soak observer"}
        given["prepare_threshold"] = None
        return psycopg.connect(**where, user=SUPERUSER, autocommit=True, **given)

    def _note_map(self, row: Any) -> None:
        version, owners = row
        with self._lock:
            if version > self._map[0] and owners:
                self._map = (version, {int(shard): node for shard, node in owners.items()})

    def _note_moves(self, node: str, rows: list[Any], began: float, ended: float) -> None:
        with self._lock:
            for move, handover, state, revision, source, target, shards, read_only, back in rows:
                fresh = Seen(handover, source, target, tuple(shards), read_only, back)
                one = self.moves.setdefault(move, fresh)
                if state in _UNDOABLE and node == source and one.decided == math.inf:
                    one.undoable = max(one.undoable, began)
                if state in {"promoting", *_CLAIMED}:
                    one.decided = min(one.decided, ended)
                if state in _CLAIMED:
                    one.claimed = min(one.claimed, ended)
                if state in _CLAIMED - {"claimed"}:
                    one.routed = min(one.routed, ended)
                over = state not in _OPEN
                if over:
                    one.ended = min(one.ended, ended)
                if over or (revision >= one.revision and one.state in _OPEN):
                    one.state, one.revision = state, revision

    def _note_paused(self, pooler: str, paused: set[str], began: float, ended: float) -> None:
        """Join looks to pauses, from the end of the first that saw one to the begin of the last."""
        with self._lock:
            for alias in paused:
                first, _ = self._paused.get((pooler, alias), (ended, ended))
                self._paused[pooler, alias] = (first, max(began, first))
            over = [key for key in self._paused if key[0] == pooler and key[1] not in paused]
            for key in over:
                self.pauses.append(Pause(*key, *self._paused.pop(key)))

    def all_pauses(self) -> list[Pause]:
        """Give all pauses, those that are not over included."""
        with self._lock:
            return [*self.pauses, *(Pause(*key, *span) for key, span in self._paused.items())]
