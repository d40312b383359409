"""Which machines commands can run on, and as whom."""

from __future__ import annotations

import dataclasses
import os
import pwd
from pathlib import Path

import pytest

from shardctl.hosts.local import Local
from shardctl.hosts.openssh import SshSettings
from shardctl.hosts.reach import host_of, machine_of
from shardctl.hosts.ssh import Ssh as SshHost
from shardctl.topology import loader
from tests.fixtures.fleets.facts import POOLER
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import local_node

NODE = local_node(Path("/nowhere"), "a", 5432, range(4))
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize("host", ["localhost", "::1", "/run/postgresql"])
def test_this_machine_is_reached_without_a_network(host: str) -> None:
    assert isinstance(host_of(dataclasses.replace(POOLER, host=host)), Local)
    assert isinstance(host_of(dataclasses.replace(NODE, host=host, os_user=ME)), Local)


@pytest.mark.parametrize("host", ["2001:db8::1", "nosuch.invalid"])
def test_another_machine_is_reached_by_ssh_at_the_address_of_its_server(host: str) -> None:
    for of in (dataclasses.replace(POOLER, host=host), dataclasses.replace(NODE, host=host)):
        found = machine_of(of)
        assert isinstance(found, SshHost)
        assert found.settings == SshSettings(host)


def test_a_path_that_is_relative_to_the_topology_is_on_this_machine_only() -> None:
    text = (
        "cluster: photos\n"
        "shards: {count: 8, schema: 'shard{id}'}\n"
        "database: {name: app}\n"
        "nodes:\n"
        "  a: {host: 192.0.2.1, port: 5432, shards: 0-3, data_directory: data/a}\n"
        "  b: {host: 127.0.0.1, port: 5432, shards: 4-7, data_directory: data/b}\n"
        "  c: {host: 192.0.2.1, port: 5433, shards: none, data_directory: /data/c}\n"
        "poolers:\n"
        "  p: {host: 192.0.2.1, port: 6432, config: p.ini, aliases: [node]}\n"
    )
    topology = loader.parse(text.encode(), Path("/srv/topology.yaml"))
    a, b, c = topology.nodes.values()
    (p,) = topology.poolers.values()
    for of, named in ((a, "data_directory"), (p, "config")):
        with raises_code("relative_path", match=named) as e:
            host_of(of)
        assert "192.0.2.1" in e.value.message
    assert isinstance(host_of(b), Local)
    assert isinstance(host_of(c), SshHost)


def test_a_user_who_is_not_there_is_refused() -> None:
    with raises_code("os_user_refused"):
        host_of(dataclasses.replace(POOLER, os_user="no-such-user"))
