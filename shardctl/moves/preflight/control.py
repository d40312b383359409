"""Preflight of the operator's own commands for the target's server: that they can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.hosts.host import CommandFailed
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from shardctl.hosts.host import Host
    from shardctl.topology.model import Node

_SECONDS = 30.0
_NOT_RUN = (126, 127)  # what a shell ends with for a program that it cannot run, or find


def require(host: Host, node: Node) -> None:
    """Run the command that tells the status, which changes nothing, for all of them.

    What it tells is another question: before the first clone there may be no server to tell of.
    Raises TargetUnfit.
    """
    if node.control is None or node.control.status is None:
        return
    try:
        host.run(["sh", "-c", node.control.status], timeout=_SECONDS)
    except CommandFailed as error:
        said = (error.completed.stderr.strip() or error.completed.stdout.strip()).splitlines()
        by_sudo = [line for line in said if line.startswith("sudo:")]
        if error.completed.code not in _NOT_RUN and not by_sudo:
            return
        reason = (by_sudo or said or ["it says nothing"])[-1]
        raise TargetUnfit(
            node.name,
            "control",
            f"its command for the status cannot be run: {reason}",
            hint="correct `control` of the node; its commands are run by `sh -c` on its host, as "
            "the user who logs in there, and nobody is asked for a password",
        ) from error
