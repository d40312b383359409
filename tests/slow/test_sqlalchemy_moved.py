"""A streamed move under an application on SQLAlchemy: no error, no row lost, no long request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import BigInteger, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shardctl.contrib.sqlalchemy import ShardSessions
from shardctl.router import ShardedDatabase
from tests.fixtures import commands
from tests.fixtures.moves.requests import Requests

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.proof

BEYOND_MS = 60.0
"""How much longer than the pause a request may take, on top of what the machine adds anyway."""
SHARDS = (0, 2, 3, 5)


class Base(DeclarativeBase):
    pass


class Write(Base):
    __tablename__ = "writes"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default=text("next_id()"))
    token: Mapped[int] = mapped_column(BigInteger)


def write(session: Session, token: int) -> None:
    session.add(made := Write(token=token))
    session.flush()
    found: Any = session.get_one(Write, made.id, populate_existing=True)
    assert found.token == token


@pytest.mark.parametrize("through", ["poolers", "nodes"])
def test_requests_wait_no_longer_than_the_move(fleet_stream: MovingFleet, through: Any) -> None:
    with ShardedDatabase(fleet_stream.topology(), through=through) as db:
        sessions = ShardSessions(db)
        with Requests(lambda shard, token: sessions.run(shard, write, token), SHARDS) as clients:
            clients.wait(400)
            before_ms, clients.longest_ms = clients.longest_ms, 0.0
            mover = fleet_stream.mover("start")
            assert mover.end() == 0, mover.said
            clients.wait(100)
    assert clients.errors == []
    for shard, tokens in clients.kept.items():
        node = "a" if shard == 0 else "b"
        found = {t for (t,) in fleet_stream.ask(node, f"SELECT token FROM shard{shard}.writes")}
        assert set(tokens) <= found
    shown = commands.here("--topology", str(fleet_stream.file), "moves", "show", "-o", "json")
    pause_ms = json.loads(shown.stdout)["report"]["pause_ms"]
    assert clients.longest_ms <= pause_ms + BEYOND_MS + before_ms
