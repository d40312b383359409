"""What it costs that aliases survive RESET ALL, beside other ways to the same end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.pq import ExecStatus

from shardctl.pgbouncer import reset
from tests.bench import fleet, pooling
from tests.bench.measure import Row, alternate, compare, per

if TYPE_CHECKING:
    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale, Side
    from tests.bench.pooling import Pooled

ROWS = 1_000

_CHECK = (
    "SELECT pg_terminate_backend(pg_backend_pid())"
    " WHERE current_setting('shardctl.alias', true) = ''"
)
_CONFIGURATIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "survive_reset": reset.SETTINGS,
    "check before each transaction": {"server_check_query": _CHECK, "server_check_delay": "0"},
    "an empty query after each": {"server_reset_query": ";", "server_reset_query_always": "1"},
}


def survive(scale: Scale) -> list[Row]:
    """Time a one-row select through a shard's alias, with and without what survives resets.

    Fair: the same PgBouncer, alias and connection; only its configuration differs, and is read
    before the clock runs. One client asks again as soon as it has its answer, by libpq alone, so
    that all that PgBouncer does between two transactions is in the time; a second row is the
    same by psycopg, which itself takes a part of it.
    """
    with fleet.running(2) as running:
        pooling.prepare(running, pooling.SPARE)
        with pooling.pooled(running, 2, survive_reset=True) as pooled:
            _make_table(running, pooled)
            raw = _measured(pooled, scale, by_psycopg=False)
            slow = _measured(pooled, scale, by_psycopg=True)
    shown = per(scale.of(1_000, 20), "select")
    rows = [
        compare(
            name if name == "survive_reset" else f"  {name}",
            raw[name],
            raw["plain"],
            against="plain",
            shown=shown,
        )
        for name in _CONFIGURATIONS
        if name != "plain"
    ]
    ours, plain = slow["survive_reset"], slow["plain"]
    return [*rows, compare("survive_reset, psycopg", ours, plain, against="plain", shown=shown)]


def _measured(pooled: Pooled, scale: Scale, *, by_psycopg: bool) -> dict[str, list[float]]:
    sides = {
        name: _selecting(pooled, name, scale.of(1_000, 20), by_psycopg=by_psycopg)
        for name in _CONFIGURATIONS
        if not by_psycopg or name in ("plain", "survive_reset")
    }
    return alternate(sides, scale.of(21, 2))


def _selecting(pooled: Pooled, name: str, count: int, *, by_psycopg: bool) -> Side:
    statement = b"SELECT v FROM bench_rows WHERE id = 7"

    def side() -> float:
        _configure(pooled, _CONFIGURATIONS[name])
        with pooled.connect(pooled.aliases[0]) as client:
            client.execute(statement).fetchone()
            began = time.perf_counter()
            for _ in range(count):
                if by_psycopg:
                    client.execute(statement).fetchone()
                elif client.pgconn.exec_(statement).status != ExecStatus.TUPLES_OK:
                    raise RuntimeError(f"{name}: a select failed")
            return time.perf_counter() - began

    return side


def _configure(pooled: Pooled, settings: dict[str, str]) -> None:
    """Let the pooler run with these and none of the other ways' settings."""
    ours = {key for each in _CONFIGURATIONS.values() for key in each}
    config = pooled.pooler.config
    kept = [
        line
        for line in config.read_text(encoding="utf-8").splitlines()
        if line.partition(" = ")[0] not in ours
    ]
    place = next(n for n, line in enumerate(kept) if line.startswith("%include"))
    lines = [f"{key} = {value}" for key, value in settings.items()]
    text = "\n".join([*kept[:place], *lines, *kept[place:]])
    config.write_text(f"{text}\n", encoding="utf-8")
    with pooled.console() as console:
        console.reload()
        have: dict[str, Any] = console.config()
    if any(have[key] != value for key, value in settings.items()):
        raise RuntimeError(f"PgBouncer did not take {settings}")


def _make_table(running: Fleet, pooled: Pooled) -> None:
    alias = pooled.aliases[0]
    (port,) = (entry.port for entry in pooled.entries() if entry.alias == alias)
    with running.connect(running.ports.index(port), user="postgres") as connection:
        for statement in (
            "CREATE SCHEMA {}",
            "GRANT USAGE ON SCHEMA {} TO app",
            "CREATE TABLE {}.bench_rows (id integer PRIMARY KEY, v text)",
            "GRANT SELECT ON {}.bench_rows TO app",
        ):
            connection.execute(sql.SQL(statement).format(sql.Identifier(alias)))
        rows = sql.SQL("INSERT INTO {}.bench_rows SELECT g, g::text FROM generate_series(1, {}) g")
        connection.execute(rows.format(sql.Identifier(alias), sql.Literal(ROWS)))
