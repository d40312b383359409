"""The target of a stream: a server with room on its disk and nothing in the shards' place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves import wal as room
from shardctl.moves.plan import TargetUnfit
from shardctl.moves.preflight import fleet, server
from shardctl.moves.preflight import wal as copy
from shardctl.postgres import binaries, catalog
from shardctl.provision.refusals import schema_in_the_way

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    peer = peers.get(node)
    if peer is not None and not peer.is_member:
        yield TargetUnfit(
            node,
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
    if context.plan.reverses is None and there.major < max(source.major, server.OLDEST_STREAMED):
        needed = max(source.major, server.OLDEST_STREAMED)
        yield TargetUnfit(
            node,
            "version",
            f"it has PostgreSQL {there.version}, and the source has {source.version}",
            hint=f"a streamed move needs a target with PostgreSQL {needed} or newer",
        )
    if peer is not None and peer.live:
        yield schema_in_the_way(
            node,
            "it already has schemas with the names of moved shards",
            sorted(peer.live),
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
    """Refuse a target where statements of the applications would fail, or do something else.

    `structure` reports roles that are missing there, `shardctl verify` other settings.
    """
    source, target = context.need(role_settings_of_source), context.need(role_settings)
    differing = []
    for role in sorted(source.keys() & target.keys()):
        for name in sorted(catalog.DECISIVE):
            here, there = (catalog.shown_setting(name, s[role].get(name)) for s in (source, target))
            if here != there:
                differing.append(f"{role}: {name} {there} (node {context.plan.source}: {here})")
    if differing:
        yield TargetUnfit(
            context.plan.target,
            "role_settings",
            f"sessions of applications would begin with other settings: {listed(differing)}",
            hint=catalog.SET_ALIKE,
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
