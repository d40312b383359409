"""The lint of pending migrations: what it refuses, and how it is accepted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardctl.rollout import lint

if TYPE_CHECKING:
    import pytest

    from tests.fixtures.fleets.fleet import Fleet

DROP = "ALTER TABLE photos DROP COLUMN {};\n"


def test_a_warning_is_accepted_for_one_file_and_not_for_another(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "SELECT 1")
    first = fleet_8.migration("0002_drop.sql", "\nALTER TABLE photos DROP COLUMN user_id;\n")
    second = fleet_8.migration("0003_drop.sql", "ALTER TABLE photos DROP COLUMN id;\n")
    done = fleet_8.here("migrate")
    assert done.returncode == 1
    assert f"{first}:2: ban-drop-column" in done.stderr
    assert f"{second}:1: ban-drop-column" in done.stderr
    assert "--accept 0002:ban-drop-column --accept 0003:ban-drop-column" in done.stderr
    done = fleet_8.here("migrate", "--accept", "0002:ban-drop-column", "-o", "json")
    assert done.returncode == 1
    assert f"accepted: {first}:2: ban-drop-column" in done.stderr
    [error] = json.loads(done.stdout)["errors"]
    assert error["code"] == "lint_warnings"
    assert f"{second}:1: " in error["message"]
    assert str(first) not in error["message"]
    assert fleet_8.query("a", "SELECT user_id FROM shard0.photos") == []
    done = fleet_8.here("migrate", "--accept", "0002:ban-drop-column", "--accept", "0003_drop.sql")
    assert done.returncode == 0, done.stderr


def test_what_a_dry_run_would_refuse_it_refuses(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_index.sql", "CREATE INDEX ON photos (user_id);")
    done = fleet_8.here("migrate", "--dry-run")
    assert done.returncode == 1
    assert "require-concurrent-index-creation" in done.stderr
    done = fleet_8.here("migrate", "--canary", "1")
    assert done.returncode == 1
    assert fleet_8.query("a", "SELECT count(*) FROM shardctl.rollout") == [(0,)]


def test_concurrently_in_a_transaction_is_an_error_with_its_line(fleet_8: Fleet) -> None:
    file = fleet_8.migration(
        "0002_index.sql", "-- by user\n\nCREATE INDEX CONCURRENTLY by_user ON photos (user_id);"
    )
    done = fleet_8.here("migrate", "--accept", "0002")
    assert done.returncode == 2
    assert f"{file}:3: CREATE INDEX CONCURRENTLY cannot run in a transaction" in done.stderr
    assert "`-- shardctl: no-transaction`" in done.stderr


def test_a_missing_lint_is_said(fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "program", lambda: None)
    fleet_8.migration("0002_drop.sql", "ALTER TABLE photos DROP COLUMN user_id;")
    done = fleet_8.here("migrate")
    assert done.returncode == 0, done.stderr
    assert "note: the migrations were not linted: squawk is not installed" in done.stderr
    assert "not linted" not in fleet_8.here("migrate").stderr
