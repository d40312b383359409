"""What the global options say, and the topology they lead to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

    from shardctl.topology.model import Topology

DEFAULT_TOPOLOGY = Path("topology.yaml")


@dataclass(slots=True)
class Settings:
    """The options that are understood before and after the command; one object a run.

    `topology` is None where neither option nor environment names one.
    """

    topology: Path | None = None
    verbose: bool = False
    ahead: dict[str, Any] = field(default_factory=dict)
    """Options of the command itself that were given before it, by their names."""


def topology_file(ctx: typer.Context) -> Path:
    """Give the file that `--topology`, `$SHARDCTL_TOPOLOGY` or the default names."""
    settings: Settings = ctx.obj
    return settings.topology or DEFAULT_TOPOLOGY


def load_topology(ctx: typer.Context) -> Topology:
    """Read the topology, and open the log: the command is about to do something with it."""
    from shardctl.cli import log
    from shardctl.topology import loader

    settings: Settings = ctx.obj
    log.open_log(verbose=settings.verbose)
    return loader.load(topology_file(ctx))


def topology_if_there(ctx: typer.Context) -> Topology | None:
    """Read the topology; None where none is named and the default file does not exist."""
    settings: Settings = ctx.obj
    if settings.topology is None and not DEFAULT_TOPOLOGY.exists():
        return None
    return load_topology(ctx)
