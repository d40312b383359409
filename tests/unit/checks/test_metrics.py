"""What `metrics` makes of what it saw; the text is read back by Prometheus's own Python parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from shardctl.checks.exposition import Gauge
from shardctl.checks.exposition import render as written
from shardctl.checks.metrics import gauges, progressed, render
from shardctl.checks.status_nodes import NodeStatus, Slot, Standby, State
from shardctl.state.states import MoveState
from shardctl.topology.model import NodeName, ShardId
from tests.fixtures.fleets.scraped import ago, everything, move, node, pooler, scrape

if TYPE_CHECKING:
    from shardctl.checks.metrics import Scrape

Series = tuple[str, frozenset[tuple[str, str]]]


def read(text: str) -> dict[Series, float]:
    """Read all samples; there may be only one line for each series."""
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def value(found: Scrape, name: str, **labels: str) -> float | None:
    return read(render(found)).get(
        (f"shardctl_{name}", frozenset({"cluster": "photos", **labels}.items()))
    )


def names(found: Scrape) -> set[str]:
    return {name for name, _ in read(render(found))}


def test_every_metric_has_a_name_of_its_own_help_and_a_type() -> None:
    text = render(everything())
    every = [f"shardctl_{gauge.name}" for gauge in gauges(everything())]
    assert len(every) == len(set(every)) == text.count("# HELP ") == text.count("# TYPE ")
    assert names(everything()) == set(every)
    assert all(gauge.help.endswith(".") for gauge in gauges(everything()))
    assert text.endswith("\n")


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("node_up", {"node": "a"}, 1),
        ("node_shards", {"node": "a"}, 2),
        ("node_shards_present", {"node": "a"}, 2),
        ("node_database_bytes", {"node": "a"}, 9_000_000_000_000_001),
        ("node_map_version", {"node": "a"}, 3),
        ("node_retired_bytes", {"node": "a"}, 24576),
        ("standby_lag_bytes", {"node": "a", "standby": "c"}, 5),
        ("standby_lag_seconds", {"node": "a", "standby": "c"}, 0.25),
        ("slot_wal_bytes", {"node": "a", "slot": "s", "type": "logical"}, 16),
        ("slot_wal_left_bytes", {"node": "a", "slot": "s", "type": "logical"}, 84),
        ("slot_lag_bytes", {"node": "a", "slot": "s", "type": "logical"}, 8),
        ("pooler_up", {"pooler": "p1"}, 1),
        ("pooler_map_version", {"pooler": "p1"}, 3),
        ("pooler_waiting_clients", {"pooler": "p1"}, 1),
        ("pooler_maxwait_seconds", {"pooler": "p1"}, 6.5),
        ("pooler_paused_databases", {"pooler": "p1"}, 1),
        ("moves", {"state": "running"}, 1),
        ("moves", {"state": "aborted"}, 0),
        ("move_progress_age_seconds", {"move": "5f3a9c1e", "source": "a", "target": "b"}, 1),
        ("move_wal_bytes", {"move": "5f3a9c1e", "source": "a", "target": "b"}, 70),
        ("ids_left_seconds", {}, 618_483_649.496),
        ("verify_findings", {"severity": "warning"}, 2),
        ("verify_age_seconds", {}, 60),
        ("scrape_duration_seconds", {}, 0.25),
        ("scrape_timestamp_seconds", {}, 1_795_248_000),
    ],
)
def test_a_metric_has_the_value_that_was_seen(
    name: str, labels: dict[str, str], expected: float
) -> None:
    assert value(everything(), name, **labels) == pytest.approx(expected, abs=1e-3)


def test_a_node_that_is_down_has_its_shards_and_nothing_else() -> None:
    down = NodeStatus(NodeName("b"), State.down, (ShardId(2),), error="refused")
    found = scrape(node(), down)
    assert value(found, "node_up", node="a") == 1
    assert value(found, "node_up", node="b") == 0
    of_b = {name for name, labels in read(render(found)) if ("node", "b") in labels}
    assert of_b == {"shardctl_node_up", "shardctl_node_shards"}


def test_a_pooler_that_is_down_is_only_that() -> None:
    down = pooler("p2", error="refused", version=None, clients=None)
    found = scrape(node(), poolers=(pooler(), down))
    of_p2 = {name for name, labels in read(render(found)) if ("pooler", "p2") in labels}
    assert of_p2 == {"shardctl_pooler_up"}
    assert value(found, "pooler_up", pooler="p2") == 0
    assert value(found, "pooler_clients", pooler="p1") == 8


def test_another_server_in_the_place_of_a_node_is_not_up() -> None:
    stranger = node(error="the server there is node b of cluster photos")
    assert value(scrape(stranger), "node_up", node="a") == 0


def test_where_no_node_answers_the_number_of_moves_is_unknown() -> None:
    found = scrape(node(state=State.down, error="refused"))
    assert "shardctl_moves" not in names(found)


def test_what_is_unknown_has_no_sample() -> None:
    slot = Slot("s", "physical", active=False, wal_status="lost", retained_bytes=None)
    found = scrape(node(slots=(slot,), standbys=(Standby("c", None, None, None),)))
    assert value(found, "slot_lost", node="a", slot="s", type="physical") == 1
    assert not {name for name in names(found) if "lag" in name or "wal" in name}
    assert not {name for name in names(found) if "verify" in name}


def test_of_standbys_with_one_name_the_worst_counts() -> None:
    twins = (
        Standby("walreceiver", "streaming", 5, None),
        Standby("walreceiver", "streaming", 7, 1.0),
    )
    found = scrape(node(standbys=twins))
    assert value(found, "standby_lag_bytes", node="a", standby="walreceiver") == 7
    assert value(found, "standby_lag_seconds", node="a", standby="walreceiver") == 1


@pytest.mark.parametrize(
    ("changes", "expected_s"),
    [
        ({}, 1),
        ({"progress": None}, 1800),
        ({"progress": None, "steps": ()}, 3600),
    ],
)
def test_progress_is_what_journal_and_copy_have_newest(
    changes: dict[str, Any], expected_s: int
) -> None:
    assert progressed(move(**changes)) == ago(expected_s)


def test_a_copy_that_stalls_makes_no_progress_although_its_figures_are_new() -> None:
    running = move()
    assert running.progress is not None
    object.__setattr__(running.progress, "rate", None)
    assert progressed(running) == ago(1800)


@pytest.mark.parametrize("state", [MoveState.done, MoveState.aborted, MoveState.unconfirmed])
def test_a_move_that_is_over_is_only_counted(state: MoveState) -> None:
    found = scrape(node(), moves=(move(state),))
    assert value(found, "moves", state=state.value) == 1
    assert not {name for name in names(found) if name.startswith("shardctl_move_")}


def test_a_clock_that_is_ahead_makes_no_negative_age() -> None:
    running = move(progress=None, steps=(), holder=None)
    object.__setattr__(running.move, "changed", ago(-5))
    found = scrape(node(), moves=(running,))
    labels = {"move": "5f3a9c1e", "source": "a", "target": "b"}
    assert value(found, "move_progress_age_seconds", **labels) == 0


@given(st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_any_name_and_number_survives(cluster: str, name: str, number: float) -> None:
    gauge = Gauge("lag", 'It has "quotes", a \\ and\na second line.')
    gauge.add(number, standby=name)
    text = written([gauge], prefix="x_", labels={"cluster": cluster})
    assert text.count("\n") == 3
    # The parser ends lines at every character at which Python does; the format only at \n.
    if not set(cluster + name) & set("\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"):
        series = frozenset({("cluster", cluster), ("standby", name)})
        assert read(text) == {("x_lag", series): number}
