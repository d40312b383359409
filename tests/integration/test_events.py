"""`events` against real servers: one trail of all nodes, followed and limited."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.state import event_trail
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

KEYS = {"time", "node", "by", "command", "files", "result"}


def add(one: Fleet, node: str, result: str, *, ago: str = "0") -> None:
    with one.connect(node) as session:
        session.execute(
            "INSERT INTO shardctl.event (at, who, command, result)"
            " VALUES (clock_timestamp() - %s::interval, 'ann as root@ops1', 'a test', %s)",
            (ago, result),
        )


def shown(one: Fleet, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = one.here("events", "-o", "json", *arguments)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def results(found: list[dict[str, Any]]) -> list[str]:
    return [one["result"] for one in found]


def test_the_events_of_all_nodes_are_merged_by_time(fleet_8: Fleet) -> None:
    for node, result, ago in (("a", "2", "2 s"), ("b", "3", "1 s"), ("b", "1", "1 min")):
        add(fleet_8, node, result, ago=ago)
    found = [one for one in shown(fleet_8) if one["command"] == "a test"]
    assert results(found) == ["1", "2", "3"]
    assert [one["node"] for one in found] == ["b", "a", "b"]
    assert all({*one} == KEYS and one["by"] == "ann as root@ops1" for one in found)


def test_a_run_of_migrations_names_its_files(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", "CREATE TABLE likes (id bigint DEFAULT next_id());")
    fleet_8.migration("0003_tags.sql", "CREATE TABLE tags (id bigint DEFAULT next_id());")
    assert fleet_8.here("migrate").returncode == 0
    found = [one for one in shown(fleet_8, "--node", "a") if one["command"] == "migrate"]
    assert [(one["result"], one["files"]) for one in found] == [
        ("begun", []),
        ("done", ["0002_likes.sql", "0003_tags.sql"]),
    ]
    first = [one for one in shown(fleet_8, "--node", "a") if one["command"] == "init"]
    assert ["0001_photos.sql"] in [one["files"] for one in first]


def test_only_the_newest_and_only_since_then(fleet_8: Fleet) -> None:
    add(fleet_8, "a", "long ago", ago="2 h")
    add(fleet_8, "a", "first", ago="2 s")
    add(fleet_8, "b", "second", ago="1 s")
    assert results(shown(fleet_8, "--limit", "1")) == ["second"]
    assert "long ago" not in results(shown(fleet_8, "--since", "90m"))
    since = results(shown(fleet_8, "--since", "90m"))  # `init` may have ended between both
    assert [one for one in since if one in {"first", "second"}] == ["first", "second"]
    moment = datetime.now(UTC) - timedelta(hours=3)
    assert "long ago" in results(shown(fleet_8, "--since", moment.isoformat()))
    assert shown(fleet_8, "--since", "0s") == []
    assert fleet_8.here("events", "--since", "0s").stdout == "no events\n"
    assert results(shown(fleet_8, "--node", "b", "--limit", "1")) == ["second"]


def test_tsv_and_csv_keep_odd_texts_on_their_lines(fleet_8: Fleet) -> None:
    add(fleet_8, "a", 'tab\t, "quote"\nline \x1b[2J')
    tsv = fleet_8.here("events", "-o", "tsv", "--limit", "1").stdout
    assert tsv.count("\n") == 1
    assert tsv.split("\t")[5].startswith('tab\\t, "quote"\\nline ')
    header, row = csv.reader(
        io.StringIO(fleet_8.here("events", "-o", "csv", "--limit", "1").stdout)
    )
    assert {*header} == KEYS
    assert row[5] == 'tab\t, "quote"\nline \x1b[2J'
    assert "\x1b" not in fleet_8.here("events").stdout


def test_a_node_that_is_down_is_named_and_the_others_events_are_shown(fleet_8: Fleet) -> None:
    add(fleet_8, "a", "there")
    with fleet_8.at_ports(b=free_ports(1)[0]):
        assert results(shown(fleet_8, code=3))[-1] == "there"
        done = fleet_8.here("events", "--node", "b", "-o", "json")
    assert "node b (127.0.0.1:" in done.stderr
    assert (done.returncode, "errors" in json.loads(done.stdout)) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--node", "x"], "unknown node 'x'"),
        (["--limit", "0"], "'--limit'"),
        (["--since", "tomorrow"], "is not a duration such as 1h or a time"),
        (["--since", "99999999999d"], "is not a duration"),
    ],
)
def test_bad_usage(fleet_8: Fleet, arguments: list[str], said: str) -> None:
    done = fleet_8.here("events", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_follower_gives_each_event_once(fleet_8: Fleet) -> None:
    topology = fleet_8.topology()
    for number in range(5):
        add(fleet_8, "a", f"old {number}")
    follower = event_trail.Follower(topology, "a test", list(topology.nodes.values()))
    assert [one.result for one in follower.read(limit=2).events] == ["old 3", "old 4"]
    assert follower.read().events == ()
    add(fleet_8, "b", "new on b")
    add(fleet_8, "a", "new on a")
    assert [one.result for one in follower.read().events] == ["new on b", "new on a"]
    assert follower.read().events == ()


def test_a_node_that_comes_back_gives_only_what_is_new(fleet_8: Fleet) -> None:
    topology = fleet_8.topology()
    add(fleet_8, "b", "before", ago="1 min")
    with fleet_8.at_ports(b=free_ports(1)[0]):
        away = fleet_8.topology()
    follower = event_trail.Follower(away, "a test", list(away.nodes.values()))
    assert [one.node for one in follower.read().problems] == ["b"]  # type: ignore[attr-defined]
    add(fleet_8, "b", "missed")
    follower.topology, follower.nodes = topology, list(topology.nodes.values())
    found = follower.read()
    assert ([one.result for one in found.events], found.problems) == (["missed"], ())


def test_an_event_that_is_committed_late_is_not_missed(fleet_8: Fleet) -> None:
    topology = fleet_8.topology()
    follower = event_trail.Follower(topology, "a test", list(topology.nodes.values()))
    with fleet_8.connect("a", autocommit=False) as late:
        late.execute("INSERT INTO shardctl.event (who, command, result) VALUES ('a', 'b', 'late')")
        add(fleet_8, "a", "early")
        assert follower.read().events[-1].result == "early"
        late.commit()
    assert [one.result for one in follower.read().events] == ["late"]


def test_follow_prints_events_until_ctrl_c(fleet_8: Fleet) -> None:
    command = command_line(fleet_8.write(), "events", "--follow", "--limit", "1", "-o", "json")
    with ended(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        add(fleet_8, "b", "followed")
        assert json.loads(process.stdout.readline())["result"] == "followed"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")


def test_follow_ends_when_its_reader_does(fleet_8: Fleet) -> None:
    command = command_line(fleet_8.write(), "events", "--follow", "-o", "tsv")
    with ended(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()

        def closed() -> bool:
            add(fleet_8, "a", "unread " * 100)
            return process.poll() is not None

        wait_for(closed)
        assert "Traceback" not in process.stderr.read()
