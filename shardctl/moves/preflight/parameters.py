"""The node's own `settings`: whether its PostgreSQL accepts them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.hosts import scripts
from shardctl.moves.preflight import target
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

_SECONDS = 30.0
_SAID = re.compile(r"(?:LOG|ERROR|FATAL):\s+(.*?)(?: in file \".*\" (?:near )?line \d+.*)?$")
_BESIDE = ("skipping missing configuration file", "configuration file ")


def look(context: Context) -> list[str] | None:
    """Ask PostgreSQL's program; return what it refuses, None where it cannot be asked."""
    settings, machine = context.target.settings, context.need(target.look)
    if not settings:
        return []
    program = context.need(target.programs).program("postgres")
    argv = scripts.argv("parameters", program)
    text = configuration.composed(settings)
    done = machine.host.run(argv, user=machine.account, input=text, timeout=_SECONDS)
    return read(done.stdout)


def read(said: str) -> list[str] | None:
    r"""Read what the script prints.

    >>> read("taken\n"), read("")
    ([], None)
    >>> read('refused\nx LOG:  unrecognized parameter "a" in file "/tmp/b.conf" line 2\n'
    ...      'x FATAL:  configuration file "/tmp/b.conf" contains errors\n')
    ['unrecognized parameter "a"']
    >>> read("refused\n")
    ['PostgreSQL refuses them without a reason']
    """
    first, *lines = said.splitlines() or [""]
    if first != "refused":
        return [] if first == "taken" else None
    reported = [found[1] for line in lines if (found := _SAID.search(line))]
    own = [line for line in reported if not line.startswith(_BESIDE)]
    return own or lines[-1:] or ["PostgreSQL refuses them without a reason"]


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse parameters with which the clone would not start."""
    for reason in context.need(look) or ():
        yield TargetUnfit(
            context.target.name,
            "settings_refused",
            f"settings: {reason}: the clone would not start",
            hint="correct `settings` of the node in the topology",
        )


def notes(context: Context) -> Iterator[str]:
    """Report that the settings could not be checked."""
    if context.need(look) is None:
        yield f"node {context.target.name}: not checked: whether PostgreSQL accepts its settings"
