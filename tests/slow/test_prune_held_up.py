"""Prune beside others: who uses a schema, who is held up, two at once, kills, the lock table."""

from __future__ import annotations

from tests.fixtures.fleets.retired import RETIRED, Pruned

READ = f"SELECT FROM {RETIRED}.photos".encode()
# Who is in the way


def test_a_schema_that_a_session_reads_is_named_and_left(fleet_retired: Pruned) -> None:
    fleet_retired.retire(2, 3)
    fleet_retired.record()
    with (
        fleet_retired.fleet.connect("a", application_name="report") as session,
        session.transaction(),
    ):
        session.execute(READ)
        pid = session.info.backend_pid
        found = fleet_retired.verdicts()
        done = fleet_retired.prune("--yes")
    named = f"session {pid} (user postgres, application report, idle in transaction, open since "
    assert (found[f"a/{RETIRED}"] or "").startswith(named)
    assert done.returncode == 0
    assert named in done.stdout
    assert fleet_retired.left() == [RETIRED]


# Waiting


# Two at once


# The lock table
