"""The trial server of a preflight: what it refuses, and that nothing is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import ports
from shardctl.moves.preflight.target import TRIAL
from tests.fixtures.servers.postgres import owned

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.moves.preflight import Movable


def trial(data: Path | None) -> Path:
    assert data is not None
    return data.with_name(f"{data.name}{TRIAL}")


@pytest.mark.parametrize(
    ("settings", "code", "reason"),
    [
        ({"shared_bufers": "64MB"}, "trial_failed", '"shared_bufers"'),
        (
            {"ssl": "on", "ssl_cert_file": "/nowhere/a.crt", "ssl_key_file": "/nowhere/a.key"},
            "trial_failed",
            "/nowhere/a",
        ),
        ({"listen_addresses": "127.0.0.2"}, "trial_login", "refused"),
    ],
)
def test_what_the_server_itself_refuses(
    preflight_fleet: Movable, settings: dict[str, str], code: str, reason: str
) -> None:
    preflight_fleet.change(settings=settings)
    assert reason in preflight_fleet.only(code)
    place = trial(preflight_fleet.target.data_directory).parent
    assert not any(found.name.startswith("c") for found in place.iterdir())


def test_a_poolers_host_that_cannot_log_in(preflight_pooled: Movable) -> None:
    preflight_pooled.change(host="127.0.0.2", pooler_host="127.0.0.1")
    assert "refused" in preflight_pooled.only("guard_login")


def test_only_what_a_trial_left_is_removed(preflight_fleet: Movable) -> None:
    left = trial(preflight_fleet.target.data_directory)
    owned(left.parent, left.name)
    (left / "photo.jpg").touch()
    assert "not empty" in preflight_fleet.only("trial_failed")
    (left / "photo.jpg").rename(left / "shardctl.trial")
    (left / "data").mkdir()
    preflight_fleet.check()
    assert not left.exists()
    assert ports.knock(preflight_fleet.target.host, preflight_fleet.target.port) == "closed"
