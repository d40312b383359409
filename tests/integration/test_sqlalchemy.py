"""SQLAlchemy's sessions on the router, as applications use them, on a fleet of real servers."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import ForeignKey, func, select, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    mapped_column,
    relationship,
    selectinload,
)
from sqlalchemy.types import BigInteger, DateTime

from shardctl.contrib.sqlalchemy import AsyncShardSessions, ShardSessions
from shardctl.errors import UsageError
from shardctl.router import (
    AsyncShardedDatabase,
    OrderUnsupported,
    ShardedDatabase,
    ShardMoved,
    StatementEvent,
    WritesUnseen,
)
from tests.fixtures.fleets.routed import move_by_hand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from tests.fixtures.fleets.fleet import Fleet


TABLES = """
CREATE TABLE photos (
    id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL, caption text UNIQUE,
    made timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE likes (
    id bigint PRIMARY KEY DEFAULT next_id(), photo_id bigint NOT NULL REFERENCES photos
);
"""


class Base(DeclarativeBase):
    type_annotation_map = {int: BigInteger, datetime: DateTime(timezone=True)}  # noqa: RUF012  # its way


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(primary_key=True, server_default=text("next_id()"))
    user_id: Mapped[int]
    caption: Mapped[str | None]
    made: Mapped[datetime] = mapped_column(server_default=func.now())
    likes: Mapped[list[Like]] = relationship()


class Like(Base):
    __tablename__ = "likes"
    id: Mapped[int] = mapped_column(primary_key=True, server_default=text("next_id()"))
    photo_id: Mapped[int] = mapped_column(ForeignKey("photos.id"))


class Sharded:
    """A fleet, opened, and what its router was asked."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.told: list[StatementEvent] = []
        self.db = ShardedDatabase(fleet.topology(), on_statement=self.told.append)
        self.sessions = ShardSessions(self.db)

    def captions(self, key: int) -> list[str]:
        return [caption for (caption,) in self.db.select("caption", "photos", key, order_by="id")]


def flush(session: Session, *added: Base) -> list[Base]:
    session.add_all(added)
    session.flush()
    return list(added)


@pytest.fixture
def sharded(new_fleet: Fleet) -> Iterator[Sharded]:
    new_fleet.migration("0001_photos.sql", TABLES)
    new_fleet.copy()
    made = Sharded(new_fleet)
    with made.db:
        yield made


def test_a_session_is_a_transaction_of_its_shard(sharded: Sharded) -> None:
    with sharded.sessions(14) as session:
        photo = Photo(user_id=14, caption="100 %", likes=[Like(), Like()])
        session.add(photo)
    assert sharded.db.shard_of_id(photo.id) == 6
    assert photo.made.tzinfo is not None
    with sharded.sessions(number=6) as session:
        found = session.scalars(select(Photo)).one()
        assert [like.photo_id for like in found.likes] == [photo.id, photo.id]
        found.caption = "dusk"
    assert sharded.captions(14) == ["dusk"]
    with pytest.raises(ZeroDivisionError), sharded.sessions(14) as session:
        flush(session, Photo(user_id=14, caption="not kept"))[1 // 0]
    assert sharded.captions(14) == ["dusk"]
    assert sharded.db.select("id", "photos", 2) == []


def fill(sharded: Sharded) -> list[int]:
    """Write 3 photos each of users of every shard; give the users."""
    users = list(range(10))
    for user in users:
        rows = [
            {"id": 100 * n + user, "user_id": user, "caption": f"{n} of {user}"} for n in range(3)
        ]
        sharded.db.insert_many("photos", rows, key_field="user_id")
        sharded.db.insert("likes", user, {"id": user, "photo_id": 200 + user})
    return users


def test_rows_that_cannot_be_merged_are_refused(sharded: Sharded) -> None:
    sharded.db.insert("photos", 1, {"user_id": 1})
    merge = sharded.sessions.merge
    with pytest.raises(OrderUnsupported):
        merge(select(Photo), [1, 5], Photo.caption, key=Photo.user_id)
    with pytest.raises(TypeError, match="columns"):
        merge(select(Photo), [1], Photo.id.desc().nulls_last(), key=Photo.user_id)
    with pytest.raises(TypeError, match="table"):
        merge(select(aliased(Photo)), [1], key=Photo.user_id)
    table = Photo.__table__
    assert merge(select(table.c.user_id), [1], key=table.c.user_id) == [1]
    for user in (2, 3, 6):
        sharded.db.insert("photos", user, {"user_id": user, "id": 77})
    assert merge(select(Photo.user_id), [2, 3], Photo.user_id, key=Photo.user_id) == [2, 3]
    assert len(merge(select(Photo), [2, 6], key=Photo.user_id)) == 2
    with pytest.raises(UsageError, match="Photo"):
        merge(select(Photo), [2, 3], key=Photo.user_id)
    for own in (select(Photo).limit(1), select(Photo).order_by(Photo.id)):
        with pytest.raises(TypeError, match="order_by"):
            merge(own, [1], key=Photo.user_id)
    with sharded.sessions(1) as session:
        flush(session, Photo(user_id=1))
        with pytest.raises(WritesUnseen):
            merge(select(Photo), [1], key=Photo.user_id)


def test_asyncio_has_the_same(sharded: Sharded) -> None:
    users = fill(sharded)

    async def rename(session: AsyncSession, number: int, calls: list[int]) -> str | None:
        calls.append(1)
        photo = await session.get_one(Photo, number)
        photo.caption = f"call {len(calls)}"
        await session.flush()
        if len(calls) == 1:
            await session.execute(text("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$"))
        return photo.caption

    async def work() -> None:
        async with AsyncShardedDatabase(sharded.fleet.topology()) as db:
            sessions = AsyncShardSessions(db)
            async with sessions(3) as session:
                session.add(photo := Photo(user_id=3, caption="of a task"))
            assert db.shard_of_id(photo.id) == 3
            async with sessions(3) as session:
                await session.execute(text("DELETE FROM likes"))
                with pytest.raises(ProgrammingError):
                    await session.commit()
                await session.rollback()
            assert await sessions.run(3, rename, photo.id, []) == "call 2"
            newest = select(Photo).options(selectinload(Photo.likes))
            found = await sessions.merge(newest, users, Photo.id.desc(), 3, key=Photo.user_id)
            assert [one.id for one in found] == [photo.id, 209, 208]
            assert [one.likes[0].id for one in found[1:]] == [9, 8]

    asyncio.run(work())
    assert sharded.captions(3)[-1] == "call 2"


def test_a_shard_that_moves_is_followed(fleet_routed: Fleet) -> None:
    calls: list[int] = []

    def work(session: Session) -> None:
        calls.append(1)
        session.add(Photo(id=7, user_id=2))

    opened = [Sharded(fleet_routed) for _ in range(3)]
    with opened[0].db as db, opened[1].db as other, opened[2].db as third:
        assert [one.insert("photos", 2, {"user_id": 2}) > 0 for one in (db, other, third)]
        move_by_hand(fleet_routed)
        with pytest.raises(ShardMoved), opened[0].sessions(2) as session:
            work(session)
        opened[1].sessions.run(2, work)
        assert len(calls) == 3
        found = opened[2].sessions.merge(select(Photo.id), [2, 3], key=Photo.user_id)
        assert found == [7]
        assert third.stats().repeated == 1
