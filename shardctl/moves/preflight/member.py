"""The target of a stream: a server with room on its disk and nothing in the shards' place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import clock
from shardctl.meter import listed
from shardctl.moves import wal as room
from shardctl.moves.plan import TargetUnfit
from shardctl.moves.preflight import fleet, replication, server, target
from shardctl.moves.preflight import wal as copy
from shardctl.moves.sub_step import shortest_ms
from shardctl.postgres import binaries, catalog
from shardctl.provision.refusals import schema_in_the_way

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.clock import Offset
    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries
    from shardctl.postgres.catalog import RoleSettings


def look(context: Context) -> Server:
    """Ask the target what it is."""
    return server.read(context.member)


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse a target that is no member, or is a standby, or cannot apply the source's rows."""
    node, there, source = context.plan.target, context.need(look), context.need(server.look)
    peers = context.need(fleet.look).peers
    for name in (context.plan.source, node):
        peer = peers.get(name)
        if peer is not None and not peer.is_member:
            yield TargetUnfit(
                name,
                "no_streams",
                "schema shardctl is missing, so no shards can be streamed there",
                hint="run `shardctl init` to make the node a member of the cluster",
            )
    if there.in_recovery:
        yield TargetUnfit(
            node,
            "target_standby",
            "its server is a standby, and a move needs a primary",
            hint="set host and port of the node in the topology to those of its primary",
        )
    # A reverse goes back to a server that may well be older.
    if context.plan.reverses is None and there.major < max(source.major, replication.OLDEST):
        needed = max(source.major, replication.OLDEST)
        yield TargetUnfit(
            node,
            "version",
            f"it has PostgreSQL {there.version}, and the source has {source.version}",
            hint=f"a streamed move needs a target with PostgreSQL {needed} or newer",
        )
    live = peers[node].live if node in peers else ()
    if live:
        yield schema_in_the_way(
            node,
            "it already has schemas with the names of moved shards",
            sorted(live),
            hint="run `shardctl moves doctor` to clear what an earlier move left; otherwise check "
            "that you need nothing in them, then drop them",
        )


def role_settings_of_source(context: Context) -> RoleSettings:
    """Ask the source with which settings the applications' sessions begin."""
    return catalog.read_role_settings(context.session, context.topology.database)


def role_settings(context: Context) -> RoleSettings:
    """Ask the target the same."""
    return catalog.read_role_settings(context.member, context.topology.database)


def judge_role_settings(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a target where statements of the applications would fail, or do something else."""
    if differing := _differing(context, decisive=True):
        yield TargetUnfit(
            context.plan.target,
            "role_settings",
            f"sessions of applications would begin with other settings: {listed(differing)}",
            hint=catalog.SET_ALIKE,
        )


def note_role_settings(context: Context) -> Iterator[str]:
    """Report other settings that applications' sessions would have on the target."""
    if differing := _differing(context, decisive=False):
        yield (
            f"on node {context.plan.target}, sessions of applications begin with other settings: "
            f"{listed(differing)}"
        )


def _differing(context: Context, *, decisive: bool) -> list[str]:
    """Name the settings of roles on both nodes that differ; `structure` reports missing roles."""
    source, target = context.need(role_settings_of_source), context.need(role_settings)
    found = []
    for role in source.keys() & target.keys():
        here, there = source[role], target[role]
        for name in here.keys() | there.keys():
            if here.get(name) != there.get(name) and (name in catalog.DECISIVE) is decisive:
                value, usual = (catalog.shown_setting(name, s.get(name)) for s in (there, here))
                found.append(f"{role}: {name} {value} (node {context.plan.source}: {usual})")
    return sorted(found)


def measure(context: Context) -> float:
    """Measure a round trip to the target, in ms."""
    return shortest_ms(lambda: context.member.execute("SELECT 1"))


def clock_of(context: Context) -> Offset:
    """Compare the target's clock with the one here."""
    return clock.of_server(context.member)


def judge_clocks(context: Context) -> Iterator[ShardctlError]:
    """Compare the clocks of source and target, as far as they are known."""
    found = {
        f"node {context.plan.source}": context.of(target.clock_of_source),
        f"node {context.plan.target}": context.of(clock_of),
    }
    yield from target.differing_clocks(
        {where: one for where, one in found.items() if one is not None}
    )


def find_programs(context: Context) -> Binaries:
    """Find programs that are not older than either server; raises no_pg_dump."""
    return binaries.find_clients(max(context.need(server.look).major, context.need(look).major))


def look_at_disk(context: Context) -> int | None:
    """Measure the free bytes of the target's disk; None where its host cannot be asked."""
    directory = context.need(look).settings.get("data_directory")
    free, _ = room.free_bytes(context.target, directory, inside="base/.")
    return free


def judge_disk(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a disk without room for the shards."""
    return copy.judge_target(context, "its disk", context.need(look_at_disk), context.need(look))


def note_disk(context: Context) -> Iterator[str]:
    """Say that the room was not measured."""
    if context.need(look_at_disk) is None:
        yield (
            f"how much room the disk of node {context.plan.target} has was not measured: the copy "
            f"needs {room.megabytes(copy.copied_bytes(context))} and more"
        )
