"""A stream's parts with more tables than the target's lock table holds, and its own log file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.postgres.logical import closing, copying, publication, structure, subscription
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.streams import MOVE, NAME, SCHEMA, SETTINGS, make_template, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.servers.postgres import StartServer
    from tests.fixtures.servers.streams import Streamed

TABLES = 600
# CREATE SUBSCRIPTION locks each table once; what shardctl does itself would need several for each.
FEW_LOCKS = {"max_locks_per_transaction": "16", "max_connections": "20", "max_wal_senders": "4"}


@pytest.fixture(scope="module")
def cramped(pg_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streamed]:
    """Give a target with room for some hundred locks, which keeps a log file of its own."""
    target = SETTINGS | FEW_LOCKS | {"logging_collector": "on"}
    servers = (pg_server(SETTINGS, major=15), pg_server(target, major=15))
    for server in servers:
        make_template(server)
    directory: Path = tmp_path_factory.mktemp("cramped")
    with opened(servers, directory) as made:
        yield made


def test_many_tables_need_few_locks_and_an_apply_error_is_read_from_the_log(
    cramped: Streamed,
) -> None:
    made = "CREATE TABLE t{0} (id int PRIMARY KEY, n int); INSERT INTO t{0} VALUES (1, {0})"
    cramped.make(*(made.format(number) for number in range(TABLES)))
    cramped.publish()
    assert len(publication.tables(cramped.source, [SCHEMA])) == TABLES
    cramped.copy()
    assert len(copying.tables(cramped.target, [SCHEMA])) == TABLES
    cramped.follow()
    cramped.mark()
    cramped.equal("t0", f"t{TABLES - 1}")

    cramped.target.execute(closing.opening(cramped.target, MOVE, []))
    cramped.target.execute("INSERT INTO shard2.t0 VALUES (2, 0)")
    cramped.source.execute("INSERT INTO shard2.t0 VALUES (2, 1)")
    found = subscription.progress(cramped.source, cramped.target, NAME, NAME)
    assert found is not None
    wait_for(lambda: subscription.apply_error(cramped.target, found.origin))
    said = subscription.apply_error(cramped.target, found.origin)
    assert said == 'duplicate key value violates unique constraint "t0_pkey" (table shard2.t0)'

    subscription.drop(cramped.target, NAME)
    closing.remove(cramped.target, MOVE, deadline=0)
    structure.drop(cramped.target, [SCHEMA])
