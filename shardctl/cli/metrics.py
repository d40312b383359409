"""`shardctl metrics`: the fleet in numbers, for Prometheus."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.errors import Refused

if TYPE_CHECKING:
    from shardctl.checks.last_verify import LastVerify
    from shardctl.topology.model import Topology

app = command_app()


@app.command()
def metrics(
    ctx: typer.Context,
    *,
    textfile: Annotated[
        Path | None,
        typer.Option(
            "--textfile",
            metavar="DIRECTORY",
            help="Write the file shardctl_CLUSTER.prom into this directory instead, "
            "for node_exporter.",
        ),
    ] = None,
) -> None:
    """Print the state of nodes, poolers, moves and ids in the text format of Prometheus.

    Changes nothing. Nodes and poolers that are unreachable are down in the result, with exit
    code 0.
    """
    from shardctl.checks import metrics as shown
    from shardctl.checks import metrics_look

    topology = load_topology(ctx)
    file = None if textfile is None else _file(textfile, topology)
    text = shown.render(metrics_look.observe(topology, verified=_verified(topology)))
    if file is None:
        print(text, end="")
    else:
        _write(file, text)


def _verified(topology: Topology) -> LastVerify | None:
    from shardctl.checks import last_verify
    from shardctl.cli import log

    try:
        directory = log.state_directory()
    except OSError:  # a user without a home, as the log has reported
        return None
    return last_verify.read(directory, topology)


def _file(directory: Path, topology: Topology) -> Path:
    """Name the file, before the fleet is read for nothing; raises textfile_refused."""
    try:
        is_directory = stat.S_ISDIR(directory.stat().st_mode)
    except OSError as error:
        raise _refused(directory, error) from error
    if not is_directory:
        raise _refused(directory, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    return directory / f"shardctl_{quote(topology.cluster, safe='')}.prom"


def _write(file: Path, text: str) -> None:
    from shardctl.hosts import replacing

    try:
        replacing.write(file, text, mode=0o644)
    except OSError as error:
        raise _refused(file, error) from error


def _refused(path: Path, error: OSError) -> Refused:
    return Refused(
        "textfile_refused",
        f"{path}: {error.strerror or error}",
        hint="give the directory that node_exporter has in --collector.textfile.directory, "
        "and allow this user to write there",
    )
