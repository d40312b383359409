"""One pooler during a cutover, and its new file on its host."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.hosts import files

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.hosts.host import Held, Host
    from shardctl.pgbouncer.console import Console
    from shardctl.pgbouncer.guard import Guard
    from shardctl.topology.model import Pooler

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Gate:
    """One pooler during a cutover."""

    pooler: Pooler
    host: Host
    aliases: tuple[str, ...]
    text: str
    """The file as it is to be after the move."""
    consoles: list[Console] = field(default_factory=list)
    watcher: Console | None = None
    """A session that no PAUSE ever occupies."""
    guard: Guard | None = None
    place: str | None = None
    """Where the staged file is to go, without links; None before it is staged."""
    placing: Held | None = None
    """What puts it there, and waits on the host for the word."""

    @property
    def staged(self) -> Path:
        """The new file, beside the old one."""
        return self.pooler.databases_file.with_name(f"{self.pooler.databases_file.name}.staged")

    def hold_file(self, seconds: float) -> None:
        """Let its host wait for the word that the new file is to take its place."""
        place = self.place or self.pooler.databases_file
        self.placing = files.hold_replace(
            self.host, self.staged, place, seconds=seconds, user=self.pooler.os_user
        )

    def put_in_place(self) -> None:
        """Put the new file into place; raises FileRefused."""
        place = self.place or self.pooler.databases_file
        if self.placing is not None:
            try:
                with files.named(place):
                    self.placing.go()
            except files.FileRefused as error:  # its connection may have broken meanwhile
                logger.info("pooler %s: %s; tries again", self.pooler.name, error.message)
            else:
                return
        files.replace(self.host, self.staged, place, user=self.pooler.os_user)

    def drop_held(self) -> None:
        """Give up what waits on the host for the word: others may need its room there."""
        if self.placing is not None:
            self.placing.drop()
            self.placing = None
