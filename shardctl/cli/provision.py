"""`shardctl init`, `migrate` and `pgbouncer`: show the plan, apply it, report."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import options, picture
from shardctl.cli.command import App, Changing, Context, load_topology, made, run_change
from shardctl.cli.options import MS, Duration, ReportOption, Settings, duration_option
from shardctl.cli.output import Printed, errors_json, plural, print_json, say
from shardctl.errors import Interrupted, ShardctlError, Unfinished, together
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.fanout import Progress
    from shardctl.provision.fleet import FleetPlan
    from shardctl.provision.plan import Change
    from shardctl.topology.model import Pooler, Topology

_LOCK_TIMEOUT = Duration(seconds=2)


def _of_provision(
    *,
    all_or_nothing: options.AllOrNothingOption = False,
    jobs: options.JobsOption = 4,
    lock_timeout: Annotated[
        Duration,
        duration_option("How long to wait for a lock on a table, for example 500ms.", least=MS),
    ] = _LOCK_TIMEOUT,
    attempts: Annotated[int, typer.Option(min=1, help="How often to try to lock a batch.")] = 10,
) -> None: ...


class Provisioning(Changing):
    """A command that changes every shard; how it does is in the settings."""

    shared = (*made(_of_provision), *Changing.shared)


init_app = App()


@init_app.command(cls=Provisioning)
def init(
    ctx: Context,
    *,
    adopt: Annotated[
        bool, typer.Option(help="Take over schemas that shardctl did not create.")
    ] = False,
    without_poolers: Annotated[bool, typer.Option(help="Do not change the poolers.")] = False,
) -> None:
    """Bring the fleet to the state of the topology file; a second run changes nothing.

    Creates what is missing on every running node, with or without shards: database and roles,
    schema `shardctl`, and for each shard its schema, sequences, next_id(), grants and migrations;
    then the map, and last the aliases of the poolers. Shows the plan and asks first.
    If it is killed at any moment, the next run completes it (except a migration that asks for no
    transaction: its finished statements stay done). It never gives a shard to another node than
    the one in the map, and never changes a schema that it did not create (except with --adopt).
    It skips and lists unreachable nodes, exit code 3, if the reachable nodes agree on the map.
    """
    from shardctl.provision.fleet import plan_init

    def plan() -> FleetPlan:
        topology, strict = load_topology(ctx), ctx.obj.shared["all_or_nothing"]
        return plan_init(topology, adopt=adopt, poolers=not without_poolers, strict=strict)

    run(ctx, plan)


migrate_app = App()


@migrate_app.command(cls=Provisioning)
def migrate(
    ctx: Context,
    *,
    shards: Annotated[
        str | None, typer.Option(metavar="<list>", help="For example 0-3,17; all by default.")
    ] = None,
    finish_reverse: options.FinishReverseOption = False,
) -> None:
    """Run new migrations on every shard; shows pending migrations and asks first.

    With --shards it runs them on these only, for example to try them on a few; without, later,
    on the rest.

    A migration never waits longer for a lock than --lock-timeout. Then it releases its locks,
    waits and tries again, so that the application's sessions do not queue behind it.
    While a move can be reversed, migrations of its shards are refused: rows that go back would not
    fit. `shardctl moves finish` gives that up, and so does --finish-reverse.
    It skips and lists unreachable nodes, exit code 3, if the reachable nodes agree on the map.
    """
    from shardctl.provision.fleet import plan_migrate
    from shardctl.topology import routes

    def plan() -> FleetPlan:
        topology = load_topology(ctx)
        return plan_migrate(
            topology,
            strict=ctx.obj.shared["all_or_nothing"],
            finish_reverse=finish_reverse,
            only=None if shards is None else frozenset(routes.listed(topology, shards)),
        )

    run(ctx, plan)


HEADER = ("where", "action", "what", "name", "shards")


def run(ctx: Context, make_plan: Callable[[], FleetPlan]) -> None:
    """Observe, plan, show, and unless `dry_run`, ask, apply and report.

    JSON is one object that has the errors, too.
    """
    from shardctl.provision.fleet import require_free

    settings: Settings = ctx.obj
    plan: FleetPlan | None = None
    try:
        plan = make_plan()
        require_free(plan)
        changes = plan.changes()
        count = plural(len(changes), "change")
        shards = {shard for change in changes for shard in change.shards}
        what, where = plural(len(shards), "shard") if shards else count, _where(plan)
        run_change(
            ctx,
            pending=changes,
            header=HEADER,
            rows=rows(changes),
            plan=_json(plan, together(plan.left_out) if plan.left_out else None, settings),
            question=f"Apply {count} on {where}?",
            carry_out=partial(_carry_out, plan, settings),
            nothing=f"nothing to do: {'these shards' if plan.only else 'all'} "
            f"{'on the reachable nodes ' if plan.left_out else ''}"
            f"{'are' if plan.only else 'is'} up to date",
            notes=plan.notes,
            done=lambda took_s: f"done: {what} on {where} in {took_s:.1f} s",
            left_out=plan.left_out,
        )
    except ShardctlError as error:
        if settings.json and not Printed.json:
            print_json(_json(plan, error, settings))
        raise


def _where(plan: FleetPlan) -> str:
    poolers = len(plan.poolers.changes()) if plan.poolers else 0
    where = ((len(plan.nodes), "node"), (poolers, "pooler"))
    return " and ".join(plural(count, noun) for count, noun in where if count)


def _carry_out(plan: FleetPlan, settings: Settings, progress: Progress) -> float:
    """Carry out a plan, without the reverses that its migrations would not go with.

    Return how many seconds it took.
    """
    from shardctl.moves import reverse_kept
    from shardctl.provision.fleet import carry_out
    from shardctl.provision.plan import Options

    began, given = time.monotonic(), settings.shared
    how = Options(given["jobs"], given["lock_timeout"].ms, given["attempts"])
    reverse_kept.finish_each(plan.topology, plan.finishing, notice=say)
    carry_out(plan, how, progress, say)
    return time.monotonic() - began


def _json(
    plan: FleetPlan | None, error: ShardctlError | None, settings: Settings
) -> dict[str, Any]:
    """Return the shape of docs/reference/json.md; `plan` is None if it could not be made."""
    state = _state(plan, error, dry_run=settings.dry_run)
    reported: dict[str, Any] = {"format": 1, "state": state}
    if plan is not None:
        reported |= {
            "cluster": plan.topology.cluster,
            "changes": [change.as_json() for change in plan.changes()],
            "summary": Counter(change.action for change in plan.changes()),
            "left_out": [one.as_json() for one in plan.left_out],
        }
    return reported | (errors_json(error) if error is not None else {})


def _state(plan: FleetPlan | None, error: ShardctlError | None, *, dry_run: bool) -> str:
    if isinstance(error, Interrupted):
        return "interrupted"
    if plan is None or (error is not None and error.exit_code != Unfinished.exit_code):
        return "refused"
    if dry_run:
        return "planned"
    if error is not None:
        return "unfinished"
    return "done" if plan.changes() else "unchanged"


def rows(changes: list[Change]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a line for each change, and one for all functions that are made together."""

    def key(change: Change) -> tuple[str, str, str]:
        return str(change.pooler or change.node), change.action, change.kind

    for (node, action, kind), same in groupby(changes, key):
        lines = list(same)
        if kind == "function" and len(lines) > 1:
            yield node, action, kind, f"shardctl.* ({len(lines):,})", ""
            continue
        for line in lines:
            shards = picture.shorten(ranges.of(line.shards)) if line.shards else ""
            yield node, action, kind, line.name or "", shards


pgbouncer_app = App()

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(autocompletion=options.pooler_names, help="Only these; all by default."),
]


@pgbouncer_app.command()
def render(
    ctx: Context,
    pooler: NamesArgument = None,
) -> None:
    """Print the expected file of aliases; changes nothing.

    Its header has the map version of the databases. It lists unreachable nodes, and the reachable
    nodes must agree on the map.
    """
    from shardctl.pgbouncer import render

    topology, chosen, version = _expected(ctx, pooler)
    for one in chosen:
        print(render.databases(topology, one, version), end="")


@pgbouncer_app.command()
def diff(
    ctx: Context,
    pooler: NamesArgument = None,
    *,
    output: ReportOption = "table",
) -> None:
    """Show the differences between each pooler's file and the expected one; exit 1 if any.

    Compares only files: `shardctl verify` also checks what the poolers have loaded.
    """
    from shardctl.provision import poolers

    found, errors = poolers.compare(*_expected(ctx, pooler))
    if output == "json":
        print_json({"format": 1, "poolers": found})
    else:
        _print_diffs(found)
    if errors:
        raise together(errors)
    if any(one["state"] != "same" for one in found):
        raise typer.Exit(1)


@pgbouncer_app.command(cls=Changing)
def apply(
    ctx: Context,
    pooler: NamesArgument = None,
    *,
    force: Annotated[
        bool, typer.Option(help="Replace a file that was edited or is not shardctl's.")
    ] = False,
    all_or_nothing: options.AllOrNothingOption = False,
) -> None:
    """Bring every pooler's aliases up to date, and check that it offers them.

    Writes the file, keeps a backup, runs RELOAD, and checks the aliases that the pooler offers.
    If the pooler rejects the file, it restores the old one. It refuses a topology that contradicts
    the map in the databases: a stale file must not route clients to a node that does not own their
    shard. It lists unreachable nodes, exit code 3, if the reachable nodes agree on the map.
    """
    from shardctl.provision import maps, poolers
    from shardctl.state import lock

    purpose = lock.purpose(poolers.APPLY)
    topology = load_topology(ctx)
    chosen = _choose(topology, pooler)
    # Only a file's map version proves that no node which is away has a newer map.
    agreed = maps.agreed(topology, purpose=purpose, strict=all_or_nothing or force)
    plan = poolers.plan(
        topology, chosen, agreed.version, force=force, purpose=purpose, unread=agreed.unread
    )
    poolers.require_free(plan)
    poolers_changed = plural(len(plan.changes()), "pooler")
    run_change(
        ctx,
        pending=plan.changes(),
        header=("pooler", "action", "file", "aliases"),
        rows=[
            (
                wanted.pooler.name,
                wanted.action,
                str(wanted.pooler.databases_file),
                f"{len(wanted.entries):,}",
            )
            for wanted in plan.wanted
        ],
        plan={
            "map_version": plan.map_version,
            "poolers": [
                {"name": w.pooler.name, "action": w.action, "aliases": len(w.entries)}
                for w in plan.wanted
            ],
            "left_out": [one.as_json() for one in agreed.left_out],
        },
        question=f"Change {poolers_changed}?",
        carry_out=lambda progress: poolers.apply(plan, progress),
        done=lambda _: f"done: {poolers_changed}, map version {agreed.version}",
        left_out=agreed.left_out,
    )


def _choose(topology: Topology, names: list[str] | None) -> list[Pooler]:
    """Return the chosen poolers; report a topology without poolers."""
    from shardctl.provision import poolers

    if not topology.poolers:
        say("the topology has no poolers")
    return poolers.chosen(topology, names or [])


def _expected(ctx: Context, names: list[str] | None) -> tuple[Topology, list[Pooler], int]:
    """Return the chosen poolers and the version of the map; name nodes that cannot be read."""
    from shardctl.provision import maps
    from shardctl.state import lock

    topology = load_topology(ctx)
    chosen = _choose(topology, names)
    agreed = maps.agreed(topology, purpose=lock.purpose("pgbouncer"), strict=False)
    for one in agreed.left_out:
        say(f"note: {one.message}")
    return topology, chosen, agreed.version


def _print_diffs(found: list[dict[str, Any]]) -> None:
    for one in found:
        where = f"pooler {one['name']}: {one['file']}"
        if one["state"] == "same":
            say(f"{where} is up to date")
        else:
            say(f"{where}: {one['state']}")
            print(one["diff"], end="")
