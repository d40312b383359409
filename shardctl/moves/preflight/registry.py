"""All subjects of preflight by method, in the order in which they run and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import plan as planning
from shardctl.moves.preflight import (
    directory,
    fleet,
    managers,
    member,
    poolers,
    replication,
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
from shardctl.moves.preflight.subject import Place, Subject

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan

FLEET, SOURCE, TARGET, CLONE = Place.fleet, Place.source, Place.target, Place.clone
MEMBER, TRIAL = Place.member, Place.trial

_MAP = Subject("map", "the map in the databases is the plan's, and the topology agrees with it",
               FLEET, fleet.look_at_map)  # fmt: skip
_NODES = Subject("nodes", "no other move is open, and no node but the source has the shards",
                 FLEET, fleet.look, fleet.judge, notes=fleet.notes)  # fmt: skip
_REVERSES = Subject("reverses", "the move takes nothing from a move that can be reversed",
                    FLEET, judge=fleet.judge_reverses,
                    notes=fleet.notes_on_reverses)  # fmt: skip
_TRANSACTIONS = Subject("transactions",
                        "no transaction would hold up the cutover past --max-pause",
                        SOURCE, shards.look_for_transactions, shards.judge_transactions,
                        notes=shards.note_transactions)  # fmt: skip
_EVENTS = Subject("event triggers", "no event trigger of the source refuses what a move does",
                  SOURCE, subscriber.look_at_triggers, subscriber.judge_triggers)  # fmt: skip

CLONED: tuple[Subject, ...] = (
    Subject("topology file", "the new owners can be written into the topology file",
            FLEET, fleet.look_at_file, fleet.judge_file, notes=fleet.note_new_node),
    _MAP,
    _NODES,
    _REVERSES,
    Subject("server", "the source is a primary, and not too old",
            SOURCE, server.look, server.judge, notes=server.notes),
    Subject("rights", "the login role has all rights on the source that a move needs",
            SOURCE, server.look_for_rights, server.judge_rights),
    Subject("managers", "Patroni, if it manages the source, is paused",
            SOURCE, managers.look, managers.judge, managers.judge, managers.notes),
    Subject("replication", "the source has a free slot, and no standby that could be promoted",
            SOURCE, replication.look, replication.judge, replication.judge_standbys,
            replication.notes),
    _TRANSACTIONS,
    Subject("shards", "no session holds a table of the moved shards locked",
            SOURCE, shards.look, shards.judge, notes=shards.notes),
    Subject("beside the shards", "no object binds shards from elsewhere; there is no other data",
            SOURCE, schemas.look, schemas.judge, schemas.unfenced, schemas.notes),
    *table.of(planning.CLONE, SOURCE),
    Subject("functions in C", "which libraries the functions of the source's databases need",
            SOURCE, target.look_for_functions),
    _EVENTS,
    Subject("locks of the fence", "the source's lock table has room for the fence",
            SOURCE, judge=shards.judge_locks),
    Subject("login rules", "the files of pg_hba.conf that a clone needs can be read",
            SOURCE, trial.read_files),
    Subject("source's clock", "the clocks of source and target differ by at most half a second",
            SOURCE, target.clock_of_source, target.judge_clocks),
    Subject("host", "shardctl can work on the target's host",
            TARGET, target.look),
    Subject("port", "nothing listens at the target's address",
            TARGET, target.look_at_port),
    Subject("round trip", "how long a round trip to the target takes",
            TARGET, target.measure),
    Subject("programs", "the target's host has programs of the source's major version",
            TARGET, target.programs, target.judge_version),
    Subject("control", "the node's status command reports whether its server runs",
            TARGET, target.control),
    Subject("Debian", "Debian's tools will know the clone, if they know the source",
            TARGET, target.look_for_debian, target.judge_debian),
    Subject("directory", "the target's data directory is absent or empty, and its disk has room",
            TARGET, directory.look, directory.judge),
    Subject("replication login", "the clone's server can log in to the source for replication",
            TARGET, trial.try_replication, notes=trial.note_login),
    Subject("target's clock", "the difference of the clocks of the target's host and this machine",
            TARGET, target.clock_of_target),
    Subject("C libraries", "the C libraries of both hosts sort text alike",
            TARGET, target.libc, target.judge_libc, notes=target.note_libc),
    Subject("settings", "a standby of the source starts with the node's settings",
            CLONE, judge=shards.judge_standby),
    Subject("extensions", "the target's host has the libraries of the source's functions in C",
            CLONE, target.look_for_modules, target.judge_modules,
            notes=target.note_modules),
    Subject("trial", "a server with the clone's settings starts there, and all can log in to it",
            TRIAL, trial.look, notes=trial.notes),
    Subject("poolers", "each pooler offers the right aliases, and its clients wait long enough",
            FLEET, poolers.look, poolers.judge, notes=poolers.notes),
    Subject("WAL", "--max-rate is valid, and the source's disk has room for --max-wal",
            SOURCE, wal.look, wal.judge, notes=wal.notes),
)  # fmt: skip

STREAMED: tuple[Subject, ...] = (
    Subject("topology file", "the new owners can be written into the topology file",
            FLEET, fleet.look_at_file, fleet.judge_file),
    _MAP,
    _NODES,
    _REVERSES,
    Subject("server", "the source is a primary, and not too old",
            SOURCE, server.look, server.judge),
    Subject("rights", "the login role may do on the source all that a move does",
            SOURCE, server.look_for_rights, server.judge_rights),
    Subject("managers", "Patroni, which drops slots that it does not know, is paused",
            SOURCE, managers.look, managers.judge, managers.judge),
    Subject("standbys", "the source's commits would not wait for the target as for a standby",
            SOURCE, replication.look, replication.judge_standbys, replication.judge_standbys,
            replication.notes),
    Subject("standbys away", "the standbys of the source that may be promoted are connected",
            SOURCE, replication.look_for_standbys, notes=replication.notes_on_standbys),
    Subject("decoding", "the source decodes its WAL, and has a free slot and two WAL senders",
            SOURCE, judge=replication.judge_decoding),
    _TRANSACTIONS,
    Subject("shards", "no session holds a table of the moved shards locked",
            SOURCE, shards.look, shards.judge, notes=shards.note_sequences),
    Subject("beside the shards", "no object binds shards from elsewhere",
            SOURCE, schemas.look, schemas.unfenced, schemas.unfenced),
    *table.of(planning.STREAM, SOURCE),
    Subject("expressions", "checks, indexes, generated columns, partition keys need no search_path",
            SOURCE, table.look_at_expressions, table.judge_expressions,
            notes=table.note_expressions, published=True),
    Subject("unused slots", "the source does not drop the slot while the copy is made",
            SOURCE, replication.look_for_timeout, replication.judge_timeout,
            notes=replication.note_timeout),
    Subject("stream's role", "whether the login role may make a role on the source",
            SOURCE, subscriber.look_for_maker),
    Subject("rights of a reverse", "whether the login role may set where a stream begins",
            SOURCE, reverse.look_for_rights),
    Subject("owners", "which roles own what is moved",
            SOURCE, subscriber.look_for_owners),
    Subject("source's role settings", "with which settings applications' sessions begin",
            SOURCE, member.role_settings_of_source),
    _EVENTS,
    Subject("locks of the fence", "the source's lock table has room for the fence",
            SOURCE, judge=shards.judge_locks),
    Subject("source's clock", "the clock of the source agrees with this machine's",
            SOURCE, target.clock_of_source),
    Subject("target", "the target is a primary of the fleet, not older, without these shards",
            MEMBER, member.look, member.judge),
    Subject("round trip", "how long a round trip to the target takes",
            MEMBER, member.measure),
    Subject("target's clock", "the clocks of source and target differ by at most half a second",
            MEMBER, member.clock_of, member.judge_clocks),
    Subject("subscriber", "the target has workers and an origin free, and settings that fit",
            MEMBER, subscriber.look, subscriber.judge, notes=subscriber.notes),
    Subject("role settings", "applications' sessions begin on the target as on the source",
            MEMBER, member.role_settings, member.judge_role_settings,
            notes=member.note_role_settings),
    Subject("reverse", "the target can keep what a reverse needs (--keep-reverse)",
            MEMBER, reverse.look_for_room, reverse.judge_room, notes=reverse.note_kept),
    *table.of(planning.STREAM, MEMBER),
    Subject("target's event triggers", "no event trigger of the target refuses what a move does",
            MEMBER, subscriber.look_at_triggers_of_target, subscriber.judge_triggers_of_target),
    Subject("target's disk", "the target's disk has room for the shards",
            MEMBER, member.look_at_disk, member.judge_disk, notes=member.note_disk),
    Subject("replication login", "the target's server can log in to the source",
            MEMBER, subscriber.try_login, subscriber.judge_login, notes=subscriber.note_login),
    Subject("pg_dump", "this machine has pg_dump and pg_restore that know both servers",
            MEMBER, member.find_programs),
    Subject("poolers", "each pooler offers what it should, and its clients outlast the pause",
            FLEET, poolers.look, poolers.judge, notes=poolers.notes),
    Subject("WAL", "--max-rate is a rate, and the source's disk has room for --max-wal",
            SOURCE, wal.look, wal.judge, notes=wal.notes),
)  # fmt: skip

_COPYING = (
    "pg_dump", "target's disk", "unused slots", "reverse", "rights of a reverse",
)  # fmt: skip
"""Subjects of what a reverse does without."""

REVERSED: tuple[Subject, ...] = (
    *(one for one in STREAMED if one.name not in _COPYING),
    Subject("changes since", "the shards' structure is that with which they moved",
            SOURCE, reverse.look_at_source, reverse.judge_source),
    Subject("retired copies", "the retired copies are as the move left them",
            MEMBER, reverse.look_at_target, reverse.judge_target),
)  # fmt: skip


def of(plan: MovePlan) -> tuple[Subject, ...]:
    """Give the subjects of a plan."""
    if plan.reverses is not None:
        return REVERSED
    return STREAMED if plan.streams else CLONED
