"""Targets onto which preflight lets nothing be cloned, by what was seen of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves.preflight.schemas import Version
from tests.fixtures.moves.facts import MB, PLACE, A, C, fit

if TYPE_CHECKING:
    from shardctl.moves.preflight.directory import Kind


def test_a_place_that_is_not_there_or_empty_is_fit() -> None:
    seen = fit()
    assert seen.refused() == {}
    seen.place("empty", seen=str(PLACE))
    assert seen.refused() == {}
    assert seen.notes().splitlines()[0] == "node c will have no standby and no backup"


def test_a_directory_with_something_else_in_it() -> None:
    seen = fit()
    seen.place("other", holds=("photo.jpg",))
    assert str(PLACE) in seen.only("directory_not_empty")


@pytest.mark.parametrize(
    ("kind", "what"),
    [("file", "is not a directory"), ("link", "is a symbolic link"), ("mount", "is a mount point")],
)
def test_a_place_that_cannot_take_a_clones_name(kind: Kind, what: str) -> None:
    seen = fit()
    seen.place(kind)
    told = seen.only("directory_unfit")
    assert what in told
    assert ("such as one below it" in told) == (kind == "mount")


def test_a_directory_that_its_user_may_not_enter() -> None:
    seen = fit()
    seen.place("closed", seen="/srv/closed")
    seen.target(account="postgres")
    assert "/srv/closed" in seen.only("directory_closed")


def test_what_an_earlier_clone_has_left() -> None:
    seen = fit()
    seen.place("absent", leftover=True)
    assert str(PLACE) in seen.only("leftover_clone")


def test_settings_with_which_no_standby_starts() -> None:
    seen = fit()
    seen.node(C, settings={"max_connections": "50", "Max_Prepared_Transactions": "0"})
    told = seen.only("settings")
    assert "max_connections" in told
    assert "max_prepared_transactions" in told
    seen.node(C, settings={"max_connections": "200", "work_mem": "8MB"})
    assert seen.refused() == {}
    seen.node(C, settings={"max_connections": "many", "wal_level": "minimal"})
    told = seen.only("settings")
    assert "max_connections" in told
    assert "wal_level" in told


def test_a_lock_table_that_is_too_small_for_the_claim() -> None:
    seen = fit()
    seen.source(
        settings={"max_connections": "2", "max_locks_per_transaction": "1",
                  "max_prepared_transactions": "2"},
    )  # fmt: skip
    seen.only("lock_table")
    seen.only("lock_table")


def test_a_disk_without_room() -> None:
    seen = fit()
    seen.place("absent", free_bytes=8 * MB, seen="/srv/small")
    told = seen.only("disk")
    assert "/srv/small" in told
    assert "max_wal_size" in told
    seen.place("absent", free_bytes=None)
    assert seen.refused() == {}


def test_libraries_without_which_the_clone_would_not_start() -> None:
    seen = fit()
    seen.target(lacking=["nosuch", "/srv/own/other"])
    told = seen.only("preload_libraries")
    assert "shared_preload_libraries" in told
    assert "shared_preload_libraries" in told
    seen.target(lacking=None)
    assert seen.refused() == {}
    noted = "node c: not checked: whether it has the shared_preload_libraries"
    assert noted in seen.notes()


def test_hosts_with_other_c_libraries() -> None:
    seen = fit()
    seen.target(libc=("glibc 2.36", "glibc 2.17"))
    assert seen.refused() == {}  # nothing there is ordered by the C library
    seen.contents(collations=(Version("german", "153.120", "153.120"),))
    told = seen.only("libc")
    assert "2.17" in told
    seen.target(libc=("glibc 2.36", None))
    assert seen.refused() == {}


def test_a_login_that_was_not_tried_is_noted() -> None:
    seen = fit()
    seen.target(login_untried="there is no psql")
    assert (
        "node c: not checked: its replication login to the source: there is no psql" in seen.notes()
    )


def test_without_a_source_the_place_is_judged_all_the_same() -> None:
    seen = fit()
    seen.without_source()
    seen.place("other", holds=("photo.jpg",))
    assert set(seen.refused()) == {"directory_not_empty"}
    assert seen.plan.source == A
