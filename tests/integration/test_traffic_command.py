"""`shardctl sandbox traffic` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.moves.loads import start, tables, wait_for_writes
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet


def test_the_table_of_a_killed_run_is_used_again_empty(fleet_pooled: PooledFleet) -> None:
    command = command_line(
        fleet_pooled.write(), "sandbox", "traffic", "--rate", "40", "--aliases", "direct"
    )
    with ended(subprocess.Popen(command, stderr=subprocess.PIPE, text=True)) as process:
        assert process.stderr is not None
        process.stderr.readline()  # a second is over
        with raises_code("load_running"):
            start(fleet_pooled.topology())
        process.kill()
    assert len(tables(fleet_pooled, "a")) == 4
    sessions = (
        "SELECT FROM pg_stat_activity WHERE application_name LIKE 'shardctl sandbox traffic%'"
    )
    wait_for(lambda: not fleet_pooled.query("a", sessions) + fleet_pooled.query("b", sessions))
    with start(fleet_pooled.topology()) as load:
        wait_for_writes(load)
        assert load.check().ok
    assert tables(fleet_pooled, "a") == []


@pytest.mark.proof
def test_the_command_prints_a_line_a_second_and_a_report(fleet_pooled: PooledFleet) -> None:
    done = fleet_pooled.here(
        "sandbox", "traffic", "--seconds", "1200ms", "--rate", "30", "--clients", "4", "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["format"], report["ok"], report["lost"], report["errors"]) == (1, True, 0, {})
    assert done.stderr.count("p99") >= 2
    done = fleet_pooled.here(
        "sandbox", "traffic", "--seconds", "500ms", "--rate", "30", "--keep-table"
    )
    assert done.returncode == 0, done.stderr
    assert len(tables(fleet_pooled, "a")) == 4


def test_ctrl_c_ends_the_load_early_and_checks_it(fleet_pooled: PooledFleet) -> None:
    command = command_line(
        fleet_pooled.write(), "sandbox", "traffic", "--seconds", "60s", "--rate", "30"
    )
    with ended(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out
    assert tables(fleet_pooled, "a") == []
