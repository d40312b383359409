"""A real move under an application that uses the router: no error, and no row lost."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.router import PoolSettings, ShardedDatabase, ShardMoved
from tests.fixtures.moves.stopping import finish
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.proof

SHARDS = (0, 2, 3, 5)
"""Those that move, one that stays on the source, and one of the other node."""
_tokens = itertools.count(1)
_PAUSE_S = 0.01


class Work:
    """What clients were acknowledged, by shard, and what they were told otherwise."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, set[int]] = {shard: set() for shard in SHARDS}
        self.errors: list[BaseException] = []
        self.moved = 0
        self.stop = threading.Event()

    def noted(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def lost(self, fleet: MovingFleet) -> set[int]:
        """Give the tokens that are not where their shard is now."""
        lost: set[int] = set()
        for shard, tokens in self.acknowledged.items():
            owner = {0: "a", 2: "c", 3: "c", 5: "b"}[shard]
            found = fleet.ask(owner, f"SELECT token FROM shard{shard}.writes")
            lost |= tokens - {token for (token,) in found}
        return lost


def one_write(db: ShardedDatabase, shard: int, work: Work) -> None:
    """Insert by itself, and then in a transaction, which is run again when its shard has moved."""
    token = next(_tokens)
    db.insert("writes", shard, {"token": token})
    work.acknowledged[shard].add(token)
    token = next(_tokens)
    for _ in range(2):
        try:
            with db.shard(shard) as connection:
                connection.execute("INSERT INTO writes (token) VALUES (%s)", [token])
        except ShardMoved:
            work.moved += 1
        else:
            break
    work.acknowledged[shard].add(token)


def one_read(db: ShardedDatabase, shard: int, work: Work) -> None:
    """Read over all shards: whatever was acknowledged before has to be there."""
    before = {number: set(tokens) for number, tokens in work.acknowledged.items()}
    found = {token for (token,) in db.scatter(["token"], "writes", order_by="-id", limit=1_000_000)}
    missed = set().union(*before.values()) - found
    assert not missed, f"a read beside shard {shard} missed {missed}"


def in_threads(db: ShardedDatabase, work: Work) -> list[threading.Thread]:
    """Begin clients; one for each shard that writes, and one that reads."""

    def run(operate: Callable[[ShardedDatabase, int, Work], None], shard: int) -> None:
        while not work.stop.is_set():
            try:
                operate(db, shard, work)
            except BaseException as error:  # noqa: BLE001  # the test tells of it
                work.errors.append(error)
                return
            time.sleep(_PAUSE_S)

    threads = [threading.Thread(target=run, args=(one_write, shard)) for shard in SHARDS]
    threads.append(threading.Thread(target=run, args=(one_read, 0)))
    for one in threads:
        one.start()
    return threads


@pytest.mark.parametrize("through", ["poolers", "nodes"])
def test_threads_see_no_error_while_shards_move(fleet_points: MovingFleet, through: Any) -> None:
    work = Work()
    pool = PoolSettings(max_size=5)
    with (
        ShardedDatabase(fleet_points.topology(), through=through, pool=pool) as db,
        contextlib.ExitStack() as at_end,
    ):
        at_end.callback(work.stop.set)
        threads = in_threads(db, work)
        wait_for(lambda: work.noted() > 50 or work.errors)
        finish_start(fleet_points)
        aim = work.noted() + 50
        wait_for(lambda: work.noted() > aim or work.errors)
        work.stop.set()
        for one in threads:
            one.join(120)
        assert work.errors == []
        assert work.lost(fleet_points) == set()
        assert db.node_of(2) == db.node_of(3) == "c"
        assert db.map_version == 2
        assert db.stats().repeated + work.moved > 0


def finish_start(fleet: MovingFleet) -> None:
    """Move shards 2 and 3 to node c, by a process of its own."""
    mover = fleet.mover("start")
    if mover.end() != 0:
        finish(fleet, "resume")
    assert fleet.state() == "done", mover.said
