"""Many pauses at once on real PgBouncers: what holds, what waits, and nothing stays paused."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.pgbouncer import batch, serving
from tests.fixtures.servers.pgbouncer import end, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardctl.pgbouncer.batch import Answers
    from shardctl.pgbouncer.console import Console
    from tests.fixtures.servers.pgbouncer import PgBouncer
    from tests.fixtures.servers.postgres import PgServer

ALIASES = [f"shard{n}" for n in range(12)]


@pytest.fixture(scope="module")
def poolers(
    pgbouncer_program: str, session_directory: Path, two_servers: Mapping[str, PgServer]
) -> Iterator[list[PgBouncer]]:
    """Three PgBouncers with twelve aliases each."""
    made = [make(session_directory / "batch", f"p{n}", program=pgbouncer_program) for n in range(3)]
    for one in made:
        one.start()
        one.offer(**dict.fromkeys(ALIASES, two_servers["a"].port))
    yield made
    for one in made:
        end(one)


@pytest.fixture
def pooler(poolers: list[PgBouncer]) -> Iterator[PgBouncer]:
    yield poolers[0]
    assert paused(poolers[0]) == set(), "a test left aliases paused"


@pytest.fixture
def consoles() -> Iterator[Callable[[PgBouncer, int], list[Console]]]:
    """Give a function that opens consoles, which are closed with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda pooler, count: [stack.enter_context(pooler.console()) for _ in range(count)]


def paused(pooler: PgBouncer) -> set[str]:
    with pooler.console() as console:
        return {alias.name for alias in console.databases().values() if alias.paused}


@contextlib.contextmanager
def transactions(pooler: PgBouncer, aliases: Sequence[str]) -> Iterator[None]:
    """Hold a transaction open on each alias, and end it however the pooler ends."""
    clients: list[psycopg.Connection[Any]] = []
    try:
        for alias in aliases:
            clients.append(pooler.connect(alias))
            clients[-1].execute("BEGIN")
        yield
    finally:
        for client in clients:
            with contextlib.suppress(psycopg.OperationalError):
                client.execute("COMMIT")
            client.close()


def resume_all(pooler: PgBouncer, consoles: Sequence[Console], aliases: Sequence[str]) -> None:
    refused = serving.begin(consoles[0], aliases, reload=False)
    assert all(error.not_paused for error in refused)
    assert paused(pooler) == set()


def complete(answers: Answers, aliases: Sequence[str]) -> None:
    assert (answers.refused, answers.waiting) == ({}, ())
    assert set(answers.seconds) == set(aliases)


def test_open_transactions_hold_up_only_their_own_aliases_while_consoles_are_left(
    pooler: PgBouncer, consoles: Callable[[PgBouncer, int], list[Console]]
) -> None:
    slow = ALIASES[2:5]
    sessions = consoles(pooler, 4)
    with transactions(pooler, slow):
        [answers] = batch.pause([(sessions, ALIASES)], seconds=1)
        assert set(answers.waiting) == set(slow)
        assert set(answers.seconds) == set(ALIASES) - set(slow)
        assert answers.refused == {}
        assert paused(pooler) == set(ALIASES)  # those that wait are shown so, and do not hold yet
    resume_all(pooler, consoles(pooler, 4), ALIASES)


def test_a_hung_pooler_keeps_only_its_own_waiting(
    poolers: list[PgBouncer], consoles: Callable[[PgBouncer, int], list[Console]]
) -> None:
    work = [(consoles(pooler, 2), ALIASES) for pooler in poolers[:2]]
    poolers[0].signal(signal.SIGSTOP)
    try:
        first, second = batch.pause(work, seconds=0.5)
    finally:
        poolers[0].signal(signal.SIGCONT)
    assert (dict(first.seconds), dict(first.refused)) == ({}, {})
    assert set(first.waiting) == set(ALIASES)
    complete(second, ALIASES)
    for pooler in poolers[:2]:
        resume_all(pooler, consoles(pooler, 2), ALIASES)
