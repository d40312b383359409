"""The predicted pause: what the ways to others add to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.moves import plan, prediction
from shardctl.moves.plan import MovePlan, Options
from shardctl.moves.sub_step import RoundTrips
from shardctl.topology.loader import parse

if TYPE_CHECKING:
    from shardctl.topology.model import Topology

NEAR = RoundTrips()
FAR = RoundTrips(source=100, target=100, pooler=100)


def topology(*, ssh: str = "", aliases: str = "node", count: int = 8) -> Topology:
    text = (
        "cluster: photos\n"
        f"shards: {{count: {count}, schema: 'shard{{id}}'}}\n"
        "database: {name: app, migrations: migrations/}\n"
        "nodes:\n"
        f"  a: {{host: 10.0.0.1, port: 5432, shards: 0-{count - 1}}}\n"
        "  c: {host: 10.0.0.3, port: 5432, shards: none, data_directory: /data/c}\n"
        "poolers:\n"
        f"  p: {{host: 10.0.0.4, port: 6432, config: /etc/p.ini, aliases: [{aliases}]{ssh}}}\n"
    )
    return parse(text.encode(), Path("/srv/topology.yaml"))


def added(of: Topology, round_trips: RoundTrips, shards: int = 2) -> float:
    """Tell how much longer a pause is for the ways, in ms."""
    made = moving(of, shards)
    near = prediction.pause_ms(of, made, NEAR, 0)
    return prediction.pause_ms(of, made, round_trips, 0) - near


def moving(of: Topology, shards: int = 2, max_pause_s: float = 5) -> MovePlan:
    return plan.make(of, range(shards), "c", 1, Options(max_pause_s=max_pause_s, retain_s=60))


def test_every_question_adds_the_way_to_whom_it_is_asked() -> None:
    here = topology()
    assert added(here, RoundTrips(source=100)) == pytest.approx(600)
    assert added(here, RoundTrips(target=100)) == pytest.approx(600)
    assert added(here, RoundTrips(pooler=100)) == pytest.approx(500)
    assert added(here, FAR) == pytest.approx(1500), "two of them are asked at once, twice"
    assert added(topology(ssh=", ssh: {}"), FAR) == pytest.approx(1800)


TABLES = 3
PARTS = dict.fromkeys(("lock_and_mark", "arrive", "structure", "sequences", "claim"), 1.0)


def streaming(of: Topology, max_pause_s: float = 5) -> MovePlan:
    return replace(moving(of, max_pause_s=max_pause_s), method=plan.STREAM)


def measured(**parts: float) -> float:
    here = topology()
    return prediction.measured_ms(here, streaming(here), NEAR, TABLES, PARTS | parts)


def test_measured_parts_add_up() -> None:
    """The target waits for the mark while the source looks at the structure."""
    assert measured(sequences=11) - measured() == pytest.approx(10)
    assert measured(structure=50, arrive=21) == measured(structure=50)
    assert measured(structure=21, arrive=50) - measured(structure=21) == pytest.approx(29)


def test_what_is_not_measured_is_slower_by_the_square_root_for_clients_wait() -> None:
    here, plan = topology(), streaming(topology())
    usual = prediction.parts_ms(here, plan, NEAR, TABLES)

    def slower(times: float) -> float:
        measures = {"lock_and_mark": usual["fence"], "structure": 0.0, "claim": usual["claim"]}
        return measured(**{name: times * ms for name, ms in measures.items()})

    of_load = usual["fence"] + usual["claim"]
    rest = sum(ms for name, ms in usual.items() if name != "arrive") - of_load
    renamed = prediction.REREAD_MS + prediction.RENAMED_MS[plan.method] * len(plan.schemas)
    assert slower(4) - slower(1) == pytest.approx(3 * of_load + rest + renamed)
