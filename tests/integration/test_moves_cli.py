"""`move-shards` and `moves` as a user runs them: what they print, ask, refuse and leave."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardctl.hosts.files import BACKUP
from shardctl.moves.plan import CLONE
from shardctl.moves.service import METHODS
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.fixtures.moves.own import Lab

EVERYTHING = """
SELECT (SELECT array_agg((oid, nspname)::text ORDER BY oid) FROM pg_namespace),
       (SELECT array_agg(c::text) FROM shardctl.cluster AS c),
       (SELECT array_agg(m::text) FROM shardctl.map AS m),
       (SELECT array_agg(m::text) FROM shardctl.move AS m),
       (SELECT count(*) FROM shardctl.event),
       (SELECT array_agg(slot_name) FROM pg_replication_slots)
"""


def everything(fleet: Lab) -> list[Any]:
    """Give what a move would change."""
    [pooler] = fleet.topology.poolers.values()
    return [
        *(fleet.ask(node, EVERYTHING) for node in "ab"),
        fleet.file.read_text(),
        sorted(file.name for file in pooler.databases_file.parent.iterdir()),
        pooler.databases_file.read_text(),
        sorted((fleet.directory / "nodes").iterdir()),
    ]


@contextmanager
def nothing_changes(fleet: Lab) -> Iterator[None]:
    before = everything(fleet)
    yield
    assert everything(fleet) == before


def one_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Read standard output, which is one JSON object on one line."""
    assert done.stdout.count("\n") == 1, done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["format"] == 1
    return found


def test_a_whole_move_as_a_user_runs_it(fleet_own: Lab) -> None:
    comment = "# kept: nobody but a person wrote this\n"
    before = fleet_own.file.read_text().replace("nodes:\n", f"nodes:  {comment}{comment}")
    fleet_own.file.write_text(before)
    fleet_own.ask(
        "a", "INSERT INTO shard2.photos (user_id) SELECT n FROM generate_series(1, 500) n"
    )
    words = ("move-shards", "2-3", "--to", "c", "--yes")
    done = fleet_own.begun(*words, "--lock-wait", "1m")  # no other command is running
    out, err = done.communicate()
    assert done.returncode == 0, err
    assert "502" in out
    for step in METHODS[CLONE]:
        assert f": {step.name}: {step.sentence}\n" in err
    listed = one_json(fleet_own.here("moves", "list", "-o", "json"))
    (move,) = listed["moves"]
    assert move["id"] in err

    # The file is as it was but for two values, every comment included, and nothing lies beside it.
    wanted = before.replace("shards: 0-3", "shards: 0-1")
    c = f"c: {{host: 127.0.0.1, port: {fleet_own.topology.nodes[NodeName('c')].port}, shards: "
    assert fleet_own.file.read_text() == wanted.replace(f"{c}none", f"{c}2-3")
    assert not list(fleet_own.file.parent.glob(f"*{BACKUP}"))

    assert move["state"] == "done"
    assert (move["method"], move["source"], move["target"], move["shards"]) == (
        "clone", "a", "c", [2, 3],
    )  # fmt: skip
    assert move["can"] == []
    shown = one_json(fleet_own.here("moves", "show", "-o", "json"))
    assert {k: v for k, v in shown.items() if k in move} == move
    assert shown["report"]["proof"] == "compared"
    assert 70 < shown["report"]["predicted_pause_ms"] < 150
    assert shown["report"]["pooler_waits_ms"] == {"p1": 0.0}
    assert (shown["report"]["tables"], shown["report"]["rows"]) == (2, 502)
    names = [step["name"] for step in shown["steps"]]
    assert {"reserve", "clone", "follow", "cutover", "cutover.fence", "cutover.promote"} < {*names}
    assert [n for n in names if not n.startswith("cutover.")][-1] == "retire"
    assert {step["state"] for step in shown["steps"]} == {"done"}

    with fleet_own.alias("shard2") as session:
        assert session.execute("SELECT count(*) FROM photos").fetchone() == (501,)
    assert fleet_own.here("prune", "--yes", "--now").returncode == 0
    assert fleet_own.problems() == []


def test_a_dry_run_checks_everything_and_changes_nothing(fleet_own: Lab) -> None:
    with nothing_changes(fleet_own):
        done = fleet_own.here("move-shards", "2-3", "--to", "c", "--dry-run", "-o", "json")
        table = fleet_own.here("move-shards", "2-3", "--to", "c", "--dry-run")
    assert (done.returncode, table.returncode) == (0, 0), done.stderr
    found = one_json(done)
    assert (found["source"], found["target"], found["shards"]) == ("a", "c", [2, 3])
    assert found["poolers"][0]["paused"] == ["app_a", "shard2", "shard3"]
    assert found["predicted_pause_ms"] > 30
    assert found["copy_bytes"] > 1_000_000
    assert "pauses" in table.stdout


def test_half_of_a_node_goes_by_the_sizes_of_its_shards(fleet_own: Lab) -> None:
    fill = "INSERT INTO shard{}.photos (user_id) SELECT n FROM generate_series(1, {}) n"
    for shard, rows in ((0, 30_000), (1, 10_000), (2, 10_000), (3, 10_000)):
        fleet_own.ask("a", fill.format(shard, rows))
    done = fleet_own.here(
        "move-shards", "--from", "a", "--half", "--to", "c", "--dry-run", "-o", "json"
    )
    assert one_json(done)["shards"] == [1, 2, 3]
    assert fleet_own.topology.nodes[NodeName("a")].shards == (0, 1, 2, 3)
    # Of one shard there is no half.
    text = fleet_own.file.read_text()
    fleet_own.file.write_text(text.replace("shards: 0-3", "shards: 0").replace("4-7", "1-7"))
    done = fleet_own.here("move-shards", "--from", "a", "--half", "--to", "c", "--dry-run")
    assert done.returncode == 2
