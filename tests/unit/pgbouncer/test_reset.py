"""Which configurations of PgBouncer give aliases their search_path back."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardctl.pgbouncer import reset

MODE = {"pool_mode": "transaction"}


@pytest.mark.parametrize(
    ("config", "ours", "always"),
    [
        ({**MODE, **reset.SETTINGS}, True, True),
        ({**MODE, "server_reset_query": reset.RESTORE}, True, False),
        ({"pool_mode": "session", "server_reset_query": reset.RESTORE}, True, True),
        ({**MODE, **reset.SETTINGS, "server_reset_query": "DISCARD ALL"}, False, False),
        ({**MODE, **reset.SETTINGS, "server_reset_query": f"{reset.RESTORE}; SELECT 1"}, False,
         False),
        ({**MODE, "server_reset_query": ""}, False, False),
        (MODE, False, False),
    ],
)  # fmt: skip
def test_the_query_has_to_be_ours_and_to_run_between_all_clients(
    config: dict[str, str],
    ours: bool,
    always: bool,
) -> None:
    assert (reset.restores(config), reset.restores_always(config)) == (ours, always)


def test_blanks_that_an_editor_made_do_not_matter() -> None:
    config = {**reset.SETTINGS, "server_reset_query": reset.RESTORE.replace(" ", "  ")}
    assert reset.restores_always(config)


def test_the_query_fits_one_line_of_the_file() -> None:
    assert "\n" not in reset.RESTORE
    assert "%" not in reset.RESTORE


def test_the_page_has_the_lines_that_operators_copy() -> None:
    page = (Path(__file__).parents[3] / "docs" / "poolers.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in page.splitlines()]
    assert [f"{key} = {value}" in lines for key, value in reset.SETTINGS.items()] == [True, True]
