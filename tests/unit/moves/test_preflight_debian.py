"""What preflight judges of a target's host that keeps servers with Debian's tools."""

from __future__ import annotations

import dataclasses

import pytest

from shardctl.moves.preflight.debian import Debian
from shardctl.topology.model import Control
from tests.fixtures.moves.facts import C, fit

CONTROL = Control(start="sudo -n pg_ctlcluster 15 c start", stop=None, reload=None, status=None)
OF_DEBIAN = {"config_file": "/etc/postgresql/15/main/postgresql.conf"}


def test_a_clone_in_the_place_of_a_cluster_of_debian_needs_its_commands() -> None:
    seen = fit()
    seen.target(debian=Debian("15 photos"))
    told = seen.only("debian_cluster")
    assert "/srv/c" in told
    assert "pg_ctlcluster" in told
    seen.target(debian=Debian("15 c"))
    seen.node(C, control=CONTROL)
    assert seen.refused() == {}


def test_a_clone_of_a_cluster_of_debian_is_to_be_one_too() -> None:
    seen = fit()
    seen.target(debian=Debian(None))
    assert seen.refused() == {}, "its source is none"
    seen.source(settings=OF_DEBIAN)
    told = seen.only("debian_unlisted")
    assert "pg_lsclusters" in told
    assert "pg_createcluster" in told
    seen.target(debian=None)
    assert seen.refused() == {}, "its host has no such tools"
    seen.target(debian=Debian("15 c"))
    seen.node(C, control=CONTROL)
    assert seen.refused() == {}


@pytest.mark.parametrize(
    ("cluster", "whose"), [("15 photos", "belongs to 15 photos"), (None, "belongs to no cluster")]
)
def test_commands_of_another_cluster_than_the_data_directorys(
    cluster: str | None, whose: str
) -> None:
    seen = fit()
    seen.target(debian=Debian(cluster))
    seen.node(C, control=CONTROL)
    told = seen.only("debian_other")
    assert str(whose) in told
    seen.node(C, control=dataclasses.replace(CONTROL, start="/usr/local/bin/start-it"))
    assert seen.refused() == {}, "it may be anything"
