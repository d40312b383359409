"""Settings of a node that its own server does not take, by what that has said."""

from __future__ import annotations

from tests.fixtures.moves.facts import fit


def test_settings_that_the_server_does_not_take() -> None:
    seen = fit()
    seen.target(parameters=['unrecognized configuration parameter "shared_bufers"'])
    told = seen.only("settings_refused")
    assert "shared_bufers" in told


def test_settings_of_which_nothing_is_known_are_noted() -> None:
    seen = fit()
    seen.target(parameters=None)
    assert seen.refused() == {}
    assert "node c: not checked: whether PostgreSQL accepts its settings" in seen.notes()
