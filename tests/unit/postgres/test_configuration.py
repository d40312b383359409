"""The configuration of clones: what they keep of their source's, and whom they let in."""

from __future__ import annotations

import pytest

from shardctl.postgres import configuration
from shardctl.postgres.configuration import Rule
from tests.fixtures.refusals import raises_code


def rule(address: str = "all", netmask: str | None = None, **changes: object) -> Rule:
    given = {"type": "host", "databases": ("all",), "method": "scram-sha-256", "options": ()}
    return Rule(**{**given, **changes}, address=address, netmask=netmask)  # type: ignore[arg-type]  # the tests know the fields


def lines(*rules: Rule, addresses: tuple[str, ...] = ("10.0.0.9",), user: str = "op") -> list[str]:
    head, *rest = configuration.access(user, addresses, rules).splitlines()
    assert head.startswith("# shardctl: ")
    return rest


def test_a_rule_for_everybody_is_narrowed_to_shardctl() -> None:
    assert lines(rule("all")) == ['host all "op" 10.0.0.9/32 scram-sha-256']
    assert lines(rule("10.0.0.0", "255.0.0.0")) == ['host all "op" 10.0.0.9/32 scram-sha-256']


def test_a_rule_for_less_than_shardctls_network_stays_as_narrow_as_it_is() -> None:
    found = lines(rule("10.0.0.8", "255.255.255.248"), addresses=("10.0.0.0/8",))
    assert found == ['host all "op" 10.0.0.8/29 scram-sha-256']


def test_rules_for_other_addresses_and_versions_of_ip_are_left_out() -> None:
    other = rule("10.0.1.0", "255.255.255.0")
    six = rule("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
    assert lines(other, six, rule("10.0.0.9", "255.255.255.255")) == [
        'host all "op" 10.0.0.9/32 scram-sha-256'
    ]
    assert lines(six, addresses=("127.0.0.1", "::1")) == ['host all "op" ::1/128 scram-sha-256']


def test_a_role_that_the_source_does_not_let_in_is_refused() -> None:
    with raises_code("role_not_admitted"):
        configuration.access("op", ["10.0.0.9"], [rule("10.0.1.0", "255.255.255.0")])


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
