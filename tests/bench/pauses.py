"""How long PAUSE and RESUME of aliases take: few and many, idle and under load."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.pgbouncer import serving
from shardctl.pgbouncer.console import pause_command, resume_command
from tests.bench import clients, fleet, pooling
from tests.bench.measure import alternate, compare, say, timed
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg

    from shardctl.pgbouncer.console import Console
    from tests.bench.clients import Clients, Window
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Row, Scale, Side
    from tests.bench.pooling import Pooled

    Connection = psycopg.Connection[Any]

CONSOLES = 16
CLIENTS = 8
"""Those at work through aliases that are paused, spread over these."""

_LOADS = {"idle": "", "inserting": "INSERT INTO bench (note) VALUES ('a note')"}
"""What the clients of aliases that are paused do, over and over; nothing when idle."""
_MOST_SECONDS = 60.0

Way = tuple[Callable[[], object], Callable[[], object]]
"""What pauses aliases and returns when all pauses hold, and what resumes them."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """What was seen at pauses of one way, a value a round."""

    resumes: list[float] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)


def pause(scale: Scale) -> list[Row]:
    """Time PAUSE until all hold, and RESUME, of 1, 100 and 1,000 aliases, idle and under load.

    Fair: each alias has one connection to its server, which PAUSE closes. The reference pauses
    one alias after the other over a psycopg session. Under load, 8 clients insert, a row a
    transaction, through 8 of the aliases (all through the one, where it is one), and another
    asks `SELECT 1` of an alias that is not paused. RESUME follows as soon as all pauses hold.

    The time has the ends of the servers' processes in it, as with RELOAD.
    """
    rows: list[Row] = []
    shards = scale.of(pooling.IN_USE, 16)
    with fleet.running(2) as running:
        pooling.prepare(running, shards + pooling.SPARE)
        with pooling.pooled(running, shards) as pooled, ExitStack() as stack:
            users = [stack.enter_context(pooled.connect(alias)) for alias in pooled.aliases]
            for count in (1, scale.of(100, 12), shards):
                say(f"  {count} aliases")
                _make_tables(running, _spread(pooled.aliases[:count]))
                rows += [_pauses(pooled, users[:count], load, scale) for load in _LOADS]
    return rows


def _pauses(pooled: Pooled, users: Sequence[Connection], load: str, scale: Scale) -> Row:
    """Pause these users' aliases over many consoles, and one by one."""
    aliases = pooled.aliases[: len(users)]
    rounds = scale.of(3 if len(aliases) > 100 else 5, 1)  # each costs as many new connections
    statement = _LOADS[load]
    busy = _spread(aliases) if statement else []
    with ExitStack() as stack:
        session = stack.enter_context(pooled.connect("pgbouncer", user="postgres"))
        consoles = [stack.enter_context(pooled.console()) for _ in range(CONSOLES)]
        ways = {
            "one by one": _one_by_one(session, aliases),
            "together": _together(consoles, aliases),
        }
        found = {way: Pauses() for way in ways}
        at_work: list[Clients] = []
        if statement:
            paused = clients.working(pooled.pooler, busy, statement)
            another = clients.working(pooled.pooler, [pooled.another], clients.SHORT)
            at_work = [stack.enter_context(each) for each in (paused, another)]
        sides = {
            name: _pause(users, way, found[name], console=consoles[0], busy=busy)
            for name, way in ways.items()
        }
        times = alternate(sides, rounds)
        waits = [each.end() for each in at_work]
    seen = found["together"]
    notes = [f"RESUME {pooling.median(seen.resumes)}"]
    for who, wait in zip(("longest wait", "another alias'"), waits, strict=False):
        notes.append(f"{who} {pooling.median(wait.longest(window) for window in seen.windows)}")
    return compare(
        f"PAUSE, {len(aliases):,} alias{'es' if len(aliases) > 1 else ''}, {load}",
        times["together"],
        times["one by one"],
        against="one by one",
        shown=pooling.milliseconds,
        note=", ".join(notes),
    )


def _pause(
    users: Sequence[Connection],
    way: Way,
    seen: Pauses,
    *,
    console: Console,
    busy: Sequence[str],
) -> Side:
    """Pause these users' aliases; those of `busy` have a client each time that they are named."""
    pause_all, resume_all = way
    idle = [user for user in users if user.info.dbname not in busy]

    def side() -> float:
        clients.use(idle)
        # A login to the server that PAUSE cuts off makes PgBouncer refuse the alias' clients.
        wait_for(lambda: _steady(console, busy))
        began = time.perf_counter()
        pause_all()
        paused = time.perf_counter()
        seen.resumes.append(timed(resume_all)())
        seen.windows.append((began, time.perf_counter()))
        return paused - began

    return side


def _steady(console: Console, busy: Sequence[str]) -> bool:
    """Tell whether no login to a server is under way and every busy client has a connection."""
    wanted = Counter(busy)
    for pool in console.pools():
        has = sum(int(pool[state] or 0) for state in ("sv_active", "sv_idle", "sv_used"))
        if pool["sv_login"] != "0" or has < wanted[pool["database"] or ""]:
            return False
    return True


def _one_by_one(session: Connection, aliases: Sequence[str]) -> Way:
    def run(command: Callable[[str], str]) -> None:
        for alias in aliases:
            session.execute(command(alias).encode())

    return lambda: run(pause_command), lambda: run(resume_command)


def _together(consoles: Sequence[Console], aliases: Sequence[str]) -> Way:
    def pause() -> None:
        (answers,) = serving.pause([(consoles, aliases)], seconds=_MOST_SECONDS)
        if answers.waiting or answers.refused:
            raise RuntimeError(f"not answered: {answers.waiting or answers.refused}")

    def resume() -> None:
        if refused := serving.begin(consoles[0], aliases, reload=False):
            raise RuntimeError(refused[0].message)

    return pause, resume


def _spread(aliases: Sequence[str]) -> list[str]:
    """Choose an alias for each of the clients under load.

    >>> _spread(["a"])
    ['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a']
    """
    return [aliases[index * len(aliases) // CLIENTS] for index in range(CLIENTS)]


def _make_tables(running: Fleet, aliases: Iterable[str]) -> None:
    """Make the table that the clients insert into, in these aliases' schemas on all servers."""
    for connection in running.each("app"):
        for schema in map(sql.Identifier, set(aliases)):
            for statement in (
                "CREATE SCHEMA IF NOT EXISTS {}",
                "GRANT USAGE ON SCHEMA {} TO app",
                "CREATE TABLE IF NOT EXISTS {}.bench (id bigserial PRIMARY KEY, note text)",
                "GRANT INSERT ON {}.bench TO app",
                "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {} TO app",
            ):
                connection.execute(sql.SQL(statement).format(schema))
