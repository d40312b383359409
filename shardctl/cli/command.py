"""The parts that all commands share: the topology, common options, help, and the one runner."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import typer.core
import typer.main

from shardctl.cli.options import (
    DEFAULT_TOPOLOGY,
    LockWaitOption,
    ReportOption,
    Settings,
    topology_file,
)
from shardctl.cli.output import confirm, emit, print_json, say
from shardctl.errors import ShardctlError, UsageError, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.topology.model import Topology

_Base: Any = object
F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")


class Context(typer.Context):
    """What typer gives to a command; its object is the settings of the run."""

    obj: Settings


def load_topology(ctx: Context) -> Topology:
    """Read the topology, and open the log.

    With --lock-wait, wait that long until no other command changes the fleet; raises NodeLocked.
    """
    from shardctl.cli import log
    from shardctl.topology import loader

    settings = ctx.obj
    log.open_log(verbose=settings.verbose)
    topology = loader.load_trusted(topology_file(ctx))
    if settings.lock_wait:
        command = ctx.command_path.partition(" ")[2]
        ctx.call_on_close(_turn(topology, settings.lock_wait.total_seconds(), command).close)
        # A move that has ended has written into it.
        topology = loader.load_trusted(topology_file(ctx))
    return topology


def topology_if_there(ctx: Context) -> Topology | None:
    """Read the topology; None if none is named and the default file does not exist."""
    if ctx.obj.topology is None and not DEFAULT_TOPOLOGY.exists():
        return None
    return load_topology(ctx)


def _turn(topology: Topology, wait_s: float, command: str) -> ExitStack:
    """Wait until no other command changes a node; give the turn, to be closed at the end.

    As long as the turn is open, other commands that wait go on waiting. The command itself
    reports nodes that cannot be reached. Raises NodeLocked when the time is over.
    """
    from shardctl.postgres.connection import connect
    from shardctl.state import lock

    until = time.monotonic() + wait_s
    with ExitStack() as turn:
        # All commands take the nodes in the order of the topology: two never wait for each other.
        for node in topology.nodes.values():
            try:
                session = connect(
                    node, topology.database, purpose=lock.purpose(command), autocommit=True
                )
            except ShardctlError:
                continue
            turn.callback(lock.release, session)
            if (holder := lock.holder(session)) is not None:
                say(f"waiting for {holder}, which is changing node {node.name}")
            lock.queue(session, node.name, until - time.monotonic())
        return turn.pop_all()


_PANEL = "Options of every command"
_WHOLE = 1000
"""Longer than any sentence: typer cuts those off that are longer than a line."""


def _anywhere(
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="<file>",
            help="The topology file; $SHARDCTL_TOPOLOGY or ./topology.yaml by default.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option(help="Print the log on standard error, too.", rich_help_panel=_PANEL)
    ] = False,
) -> None: ...


def _of_changes(
    output: ReportOption = "table",
    dry_run: Annotated[
        bool, typer.Option(help="Check everything and show the plan, but change nothing.")
    ] = False,
    detailed: Annotated[
        bool,
        typer.Option(
            "--detailed-exitcode",
            help="With --dry-run: exit 0 for nothing to do, 2 for pending changes, 1 for an error.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to the question.")] = False,
    lock_wait: LockWaitOption = None,
) -> None: ...


def made(options: Callable[..., None]) -> list[Any]:
    """Give the options that the parameters of a function describe, for `Command.shared`."""
    app = typer.Typer(add_completion=False)
    app.command()(options)
    params: list[Any] = typer.main.get_command(app).params
    return params


def _as_given(ctx: Any, value: Any) -> Any:
    del ctx
    return value


ANYWHERE = made(_anywhere)
"""Options of the run: every command and group accepts them."""
for _param in ANYWHERE:
    # Each run reads them several times, and typer's processing of a text takes milliseconds.
    _param.process_value = _as_given
OF_CHANGES = made(_of_changes)
"""Options of commands that change something, whose values are in the settings."""


def _without_opposites(params: Iterable[Any]) -> None:
    """Take from flags the second one that typer adds, which takes the flag back."""
    for param in params:
        if isinstance(param, typer.core.TyperOption):
            param.secondary_opts = []


_without_opposites(ANYWHERE)


def _of_run(ctx: Any) -> None:
    """Copy `--topology` and `--verbose` of this command or group into the settings."""
    settings: Settings = ctx.obj
    if (named := ctx.params.pop("topology", None)) is not None:
        settings.topology = Path(named)
    settings.verbose |= ctx.params.pop("verbose", None) or False


class _Everywhere(_Base):  # type: ignore[misc]  # of commands and of groups
    """Accepts the run's options; the help has panels in plain text, and examples."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        _without_opposites(self.params)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its own parameters and those of every command."""
        return [*super().get_params(ctx), *ANYWHERE]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options by panel; those of every command only at the root."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or (ctx.parent and param in ANYWHERE):
                continue
            argument = isinstance(param, typer.core.TyperArgument)
            panel = "Arguments" if argument else param.rich_help_panel or "Options"
            panels.setdefault(panel, []).append(record)
        for panel, records in ((name, found) for name, found in panels.items() if found):
            with formatter.section(panel):
                formatter.write_dl(records)
        if isinstance(self, Group):
            self.format_commands(ctx, formatter)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, and examples below it."""
        super().format_help(ctx, formatter)
        formatter.write(_examples(ctx))


class Command(_Everywhere, typer.core.TyperCommand):
    """A command that accepts the run's options, and shares others with several commands."""

    shared: Sequence[Any] = ()
    """The options whose values are in the settings, but for those that it has itself."""
    left_out: tuple[str, ...] = ()

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        own = {*self.left_out, *(param.name for param in self.params)}
        self._added = [param for param in self.shared if param.name not in own]
        self.params += self._added
        _without_opposites(self._added)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        settings: Settings = ctx.obj
        rest = super().parse_args(ctx, args)
        _of_run(ctx)
        settings.output = str(ctx.params.get("output", ""))
        settings.shared = {p.name: ctx.params.pop(p.name, None) for p in self._added}
        return rest


class HereChanging(Command):
    """A command that changes something: it shows a plan, and most ask before they change it."""

    shared: Sequence[Any] = OF_CHANGES
    left_out: tuple[str, ...] = ("lock_wait",)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raises UsageError for --detailed-exitcode without --dry-run."""
        settings: Settings = ctx.obj
        rest = super().parse_args(ctx, args)
        for param in OF_CHANGES:
            if param in self._added:
                setattr(settings, param.name, settings.shared[param.name])
        settings.changes = not settings.dry_run
        if settings.detailed and not settings.dry_run and not ctx.resilient_parsing:
            raise UsageError(
                "--detailed-exitcode works only with --dry-run",
                hint="add --dry-run, or leave out --detailed-exitcode",
            )
        return rest


class Changing(HereChanging):
    """A command that changes the fleet, and can wait for other ones that do."""

    left_out: tuple[str, ...] = ()


class Group(_Everywhere, typer.core.TyperGroup):
    """A group that accepts the run's options."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into plain help, with sentences that wrap."""
        found = [
            (name, command.get_short_help_str(_WHOLE))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(found)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            print(ctx.get_help())
            ctx.exit(UsageError.exit_code)
        rest = super().parse_args(ctx, args)
        _of_run(ctx)
        return rest


def _examples(ctx: Any) -> str:
    from shardctl.cli import examples

    more = "" if ctx.parent else "\nRun `shardctl help COMMAND` for the options of a command.\n"
    return f"\n{examples.text(ctx.command_path)}\n{more}"


def usage_error(error: Any) -> UsageError:
    """Turn typer's error about the arguments into a UsageError; the hint has an example."""
    from shardctl.cli import examples

    message, hint = error.format_message().replace("Value error, ", ""), ""  # pydantic's
    if ctx := getattr(error, "ctx", None):
        [(typed, _), *_] = examples.of(ctx.command_path)
        hint = f"run `{ctx.command_path} --help`; for example `{typed}`"
    return UsageError(f"{message[:1].lower()}{message[1:].rstrip('.')}", hint=hint)


class App(typer.Typer):
    """A typer application with the commands and groups of this module; only one has completion."""

    def __init__(self, **attributes: Any) -> None:
        given: dict[str, Any] = {"cls": Group, "no_args_is_help": True, "add_completion": False}
        super().__init__(rich_markup_mode=None, **(given | attributes))

    def command(self, name: str | None = None, **attributes: Any) -> Callable[[F], F]:
        """Register a command."""
        return super().command(name, **({"cls": Command} | attributes))


def run_change(
    ctx: Context,
    *,
    pending: object,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    plan: Mapping[str, Any],
    question: str,
    carry_out: Callable[[Progress], T],
    done: Callable[[T], str],
    result: Callable[[T], Mapping[str, Any]] | None = None,
    report: Callable[[T], None] | None = None,
    nothing: str = "",
    notes: Sequence[str] = (),
    left_out: Sequence[ShardctlError] = (),
) -> T | None:
    """Show the plan; unless it is a dry run or nothing is `pending`, ask and carry it out.

    JSON is one object at the end: the `plan` of a dry run, else its `result`, which is the plan
    where that is None. `report` prints a result for people, and `done` gives the last line.
    `left_out` are raised at the end. Returns what `carry_out` returned; raises what it and
    `confirm` raise.
    """
    from shardctl.cli.progress import bars

    settings = ctx.obj
    settings.pending = bool(pending)
    if not settings.json:
        emit(settings.output, header, rows, plan, nothing=nothing)
    for note in notes:
        say(f"note: {note}")
    found: T | None = None
    said = ""
    if pending and not settings.dry_run:
        confirm(question, yes=settings.yes)
        with bars() as progress:
            found = carry_out(progress)
        plan = plan if result is None else result(found)
        if report is not None and not settings.json:
            report(found)
        said = done(found)
    if settings.json:
        print_json({"format": 1, **plan})
    if said:
        say(said)
    if left_out:
        raise together(left_out)
    return found
