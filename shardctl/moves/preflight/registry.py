"""All subjects of preflight, in the order in which they run and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves.preflight import (
    directory,
    fleet,
    member,
    patroni,
    poolers,
    reverse,
    schemas,
    server,
    shards,
    subscriber,
    table,
    target,
    trial,
    wal,
)
from shardctl.moves.preflight.subject import Kind, Place, Subject

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan

FLEET, SOURCE, TARGET, CLONE = Place.fleet, Place.source, Place.target, Place.clone
MEMBER, TRIAL = Place.member, Place.trial
OF_CLONES, OF_STREAMS = (Kind.clone,), (Kind.stream, Kind.reverse)
WITH_COPIES, OF_REVERSES = (Kind.stream,), (Kind.reverse,)

SUBJECTS: tuple[Subject, ...] = (
    Subject("topology file", "the new owners can be written into the topology file",
            FLEET, fleet.look_at_file),
    Subject("map", "the map in the databases is the plan's, and the topology agrees with it",
            FLEET, fleet.look_at_map),
    Subject("nodes", "no other move is open, and no node but the source has the shards",
            FLEET, fleet.look, fleet.judge, fleet.notes),
    Subject("reverses", "the move takes nothing from a move that can be reversed",
            FLEET, judge=fleet.judge_reverses),
    Subject("server", "the source is a primary, and not too old",
            SOURCE, server.look, server.judge),
    Subject("rights", "the login role may do on the source all that a move does",
            SOURCE, server.look_for_rights, server.judge_rights),
    Subject("managers", "Patroni, which drops slots that it does not know, is paused",
            SOURCE, patroni.look, patroni.judge, patroni.notes, again="cutover"),
    Subject("transactions", "no transaction would hold up the cutover past --max-pause",
            SOURCE, shards.look_for_transactions, shards.judge_transactions),
    Subject("shards", "no session holds a table of the moved shards locked",
            SOURCE, shards.look, shards.judge),
    Subject("beside the shards", "no object binds shards from elsewhere",
            SOURCE, schemas.look, schemas.judge, again="cutover"),
    Subject("other data", "there is no other data, and no collation has changed its version",
            SOURCE, judge=schemas.judge_copied, of=OF_CLONES),
    *table.of(SOURCE),
    Subject("stream's role", "the login role may make a role on the source, where it needs one",
            SOURCE, subscriber.look_for_maker, of=OF_STREAMS),
    Subject("owners", "which roles own what is moved",
            SOURCE, server.look_for_owners, of=OF_STREAMS),
    Subject("source's role settings", "with which settings applications' sessions begin",
            SOURCE, member.role_settings_of_source, of=OF_STREAMS),
    Subject("event triggers", "no event trigger of the source refuses what a move does",
            SOURCE, subscriber.look_at_triggers),
    Subject("locks of the fence", "the source's lock table has room for the fence",
            SOURCE, judge=shards.judge_locks),
    Subject("source's clock", "the difference of the clocks of the source and this machine",
            SOURCE, target.clock_of_source),
    Subject("host", "shardctl can work on the target's host",
            TARGET, target.look, of=OF_CLONES),
    Subject("round trip", "how long a round trip to the target takes",
            TARGET, target.measure, of=OF_CLONES),
    Subject("programs", "the target's host has programs of the source's major version",
            TARGET, target.programs, target.judge_version, of=OF_CLONES),
    Subject("control", "the node's status command reports whether its server runs",
            TARGET, target.control, of=OF_CLONES),
    Subject("directory", "the target's data directory is absent or empty, and its disk has room",
            TARGET, directory.look, directory.judge, of=OF_CLONES),
    Subject("replication login", "the clone's server can log in to the source for replication",
            TARGET, trial.try_replication, of=OF_CLONES),
    Subject("target's clock", "the clocks of source and target differ by at most half a second",
            TARGET, target.clock_of_target, target.judge_clocks, of=OF_CLONES),
    Subject("C library", "the C library of the target's host sorts text as the source's does",
            CLONE, target.libc, of=OF_CLONES),
    Subject("settings", "a standby of the source starts with the node's settings",
            CLONE, judge=shards.judge_standby, of=OF_CLONES),
    Subject("extensions", "the target's host has the libraries of the source's functions in C",
            CLONE, target.look_for_modules, notes=target.note_modules, of=OF_CLONES),
    Subject("trial", "a server with the clone's settings starts there, and all can log in to it",
            TRIAL, trial.look, notes=trial.notes, of=OF_CLONES),
    Subject("target", "the target is a primary of the fleet, not older, without these shards",
            MEMBER, member.look, member.judge, of=OF_STREAMS),
    Subject("round trip", "how long a round trip to the target takes",
            MEMBER, target.measure, of=OF_STREAMS),
    Subject("target's clock", "the clocks of source and target differ by at most half a second",
            MEMBER, target.clock_of_target, target.judge_clocks, of=OF_STREAMS),
    Subject("target's rights", "the login role may do on the target all that a move does",
            MEMBER, server.look_for_rights_of_target, server.judge_rights_of_target,
            of=OF_STREAMS),
    Subject("role settings", "applications' sessions begin on the target as on the source",
            MEMBER, member.role_settings, member.judge_role_settings, of=OF_STREAMS),
    Subject("reverse", "how long the move can be reversed (--keep-reverse)",
            MEMBER, notes=reverse.note_kept, of=WITH_COPIES),
    *table.of(MEMBER),
    Subject("target's event triggers", "no event trigger of the target refuses what a move does",
            MEMBER, subscriber.look_at_triggers_of_target, of=OF_STREAMS),
    Subject("target's disk", "the target's disk has room for the shards",
            MEMBER, member.look_at_disk, member.judge_disk, of=WITH_COPIES),
    Subject("replication login", "the target's server can log in to the source",
            MEMBER, subscriber.try_login, notes=subscriber.note_login, of=OF_STREAMS),
    Subject("pg_dump", "this machine has pg_dump and pg_restore that know both servers",
            MEMBER, member.find_programs, of=WITH_COPIES),
    Subject("poolers", "each pooler offers what it should, and its clients outlast the pause",
            FLEET, poolers.look, poolers.judge, poolers.notes),
    Subject("WAL", "--max-rate is a rate, and the source's disk has room for --max-wal",
            SOURCE, wal.look, wal.judge, wal.notes),
    Subject("changes since", "the shards' structure is that with which they moved",
            SOURCE, reverse.look_at_source, of=OF_REVERSES),
    Subject("retired copies", "the retired copies are as the move left them",
            MEMBER, reverse.look_at_target, of=OF_REVERSES),
)  # fmt: skip


def of_kind(kind: Kind) -> tuple[Subject, ...]:
    """Give the subjects of a kind of move."""
    return tuple(one for one in SUBJECTS if kind in one.of)


def of(plan: MovePlan) -> tuple[Subject, ...]:
    """Give the subjects of a plan."""
    if plan.reverses is not None:
        return of_kind(Kind.reverse)
    return of_kind(Kind.stream if plan.streams else Kind.clone)
