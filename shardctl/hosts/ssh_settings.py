"""How to reach another machine: what a connection is opened with and shared by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How to reach a host; None stands for the value in `~/.ssh/config`.

    `host` may be a name from there. `connect_timeout` is in seconds, for each step of the way.
    """

    host: str
    user: str | None = None
    port: int | None = None
    key_file: Path | None = None
    accept_new: bool = False
    connect_timeout: float = 10.0
