"""The configuration of clones: what they keep of their source's."""

from __future__ import annotations

import pytest

from shardctl.postgres import configuration


def said(*others: str, unknown: bool = False) -> dict[str, str]:
    return configuration.following(conninfo="host=a", slot="s", others=others, unknown=unknown)


def test_overrides_that_only_a_restart_takes_back_stay_where_they_are_said() -> None:
    assert configuration.opened({}, said("work_mem", "archive_mode", "archive_command")) == {}
    assert configuration.opened({}, said("hot_standby")) == {"hot_standby": "on"}
    elsewhere = configuration.opened({}, said(unknown=True))
    assert elsewhere == {
        "archive_mode": "off", "hot_standby": "on", "recovery_target": "",
        "recovery_target_lsn": "", "recovery_target_name": "", "recovery_target_time": "",
        "recovery_target_xid": "", "recovery_target_timeline": "latest",
    }  # fmt: skip
    assert "archive_library" not in said(unknown=True), "PostgreSQL 14 does not know it"


@pytest.mark.parametrize(
    ("text", "beside_data", "found"),
    [
        ("host @mine,@/etc/theirs all 127.0.0.1/32 md5", True, ["/etc/theirs"]),
        ('include "more.conf"\ninclude_dir /etc/hba.d', True, ["/etc/hba.d"]),
        ("# include /etc/x\nhost all all all md5 # @/etc/y", False, []),
        ('host all "me@home" all md5', False, []),
    ],
)
def test_files_that_rules_include_and_a_clone_does_not_get_are_found(
    text: str, beside_data: bool, found: list[str]
) -> None:
    assert configuration.elsewhere(text, beside_data=beside_data) == found
