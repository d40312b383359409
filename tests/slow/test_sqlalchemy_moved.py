"""A streamed move under an application on SQLAlchemy: no error, no row lost, no long request."""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import BigInteger, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shardctl.contrib.sqlalchemy import ShardSessions
from shardctl.router import ShardedDatabase
from tests.fixtures import commands
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.proof

BEYOND_MS = 60.0
"""How much longer than the pause a request may take, on top of what the machine adds anyway."""
SHARDS = (0, 2, 3, 5)
_PAUSE_S = 0.02
_tokens = itertools.count(1)


class Base(DeclarativeBase):
    pass


class Write(Base):
    __tablename__ = "writes"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default=text("next_id()"))
    token: Mapped[int] = mapped_column(BigInteger)


class Clients:
    """Threads, each of which writes into a shard, and reads what it wrote."""

    def __init__(self, sessions: ShardSessions) -> None:
        self.sessions = sessions
        self.kept: dict[int, list[int]] = {shard: [] for shard in SHARDS}
        self.errors: list[BaseException] = []
        self.longest_ms = 0.0
        self.stop = threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(shard,)) for shard in SHARDS for _ in range(2)
        ]

    @property
    def count(self) -> int:
        return sum(map(len, self.kept.values()))

    def wait(self, more: int) -> None:
        aim = self.count + more
        wait_for(lambda: self.count > aim or self.errors)

    def end(self) -> None:
        self.stop.set()
        for one in self.threads:
            one.join(120)

    def _run(self, shard: int) -> None:
        while not self.stop.is_set():
            token, began = next(_tokens), time.perf_counter()
            try:
                self.sessions.run(shard, write, token)
            except BaseException as error:  # noqa: BLE001  # the test tells of it
                self.errors.append(error)
                return
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - began) * 1000)
            self.kept[shard].append(token)
            time.sleep(_PAUSE_S)


def write(session: Session, token: int) -> None:
    session.add(made := Write(token=token))
    session.flush()
    found: Any = session.get_one(Write, made.id, populate_existing=True)
    assert found.token == token


@pytest.mark.parametrize("through", ["poolers", "nodes"])
def test_requests_wait_no_longer_than_the_move(fleet_stream: MovingFleet, through: Any) -> None:
    with (
        ShardedDatabase(fleet_stream.topology(), through=through) as db,
        ExitStack() as at_end,
    ):
        clients = Clients(ShardSessions(db))
        at_end.callback(clients.end)
        for one in clients.threads:
            one.start()
        clients.wait(400)
        before_ms, clients.longest_ms = clients.longest_ms, 0.0
        mover = fleet_stream.mover("start")
        assert mover.end() == 0, mover.said
        clients.wait(100)
        clients.end()
    assert clients.errors == []
    for shard, tokens in clients.kept.items():
        node = "a" if shard == 0 else "b"
        found = {t for (t,) in fleet_stream.ask(node, f"SELECT token FROM shard{shard}.writes")}
        assert set(tokens) <= found
    shown = commands.here("--topology", str(fleet_stream.file), "moves", "show", "-o", "json")
    pause_ms = json.loads(shown.stdout)["report"]["pause_ms"]
    assert clients.longest_ms <= pause_ms + BEYOND_MS + before_ms
