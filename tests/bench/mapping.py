"""What SQLAlchemy costs on the router, against stock SQLAlchemy on one plain connection."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, create_engine, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shardctl.contrib.sqlalchemy import ShardSessions
from tests.bench.measure import Row, per, timed, versus
from tests.bench.routing import _pooled_database

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.measure import Scale

MOST = 1.25


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos_by_user"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default=text("next_id()"))
    user_id: Mapped[int] = mapped_column(BigInteger)
    image_url: Mapped[str]


class Read(Base):
    __tablename__ = "bench_photos"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    caption: Mapped[str]


def _insert(session: Session, key: int) -> None:
    session.add(Photo(user_id=key, image_url="/1.jpg"))


def _select(session: Session, key: int) -> None:
    session.scalars(select(Read).where(Read.id == key)).one()


def sessions(scale: Scale) -> list[Row]:
    """Time a session with one insert, and with one select, through the same pooler.

    Stock SQLAlchemy has a pool of one connection, through the pooler's alias of a shard, and so
    needs no `search_path` and always works in the same shard; nothing is prepared there either.
    """
    count = scale.of(100, 10)
    keys = [random.Random(n).randrange(64) for n in range(count)]  # noqa: S311  # no secret
    with _pooled_database(rows=1_000) as (_, topology, db):
        [pooler] = topology.poolers.values()
        stock = create_engine(
            f"postgresql+psycopg://app@{pooler.host}:{pooler.port}/shard0",
            pool_size=1,
            connect_args={"prepare_threshold": None},
        )
        ours = ShardSessions(db)
        rows: list[Row] = []
        for what, work in {"insert": _insert, "select": _select}.items():

            def sharded(work: Callable[[Session, int], None] = work) -> None:
                for key in keys:
                    with ours(key) as session:
                        work(session, key)

            def plainly(work: Callable[[Session, int], None] = work) -> None:
                for key in keys:
                    with Session(stock, expire_on_commit=False) as session, session.begin():
                        work(session, key)

            sides = {"ours": timed(sharded), "stock": timed(plainly)}
            name, shown = f"sqlalchemy: a session with one {what}", per(count, "session")
            against = {"stock": ("stock, one connection", MOST)}
            rows += versus(name, sides, scale.of(41, 2), against, shown, warm=True)
        stock.dispose()
        return rows
