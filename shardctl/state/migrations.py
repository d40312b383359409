"""The application's schema: numbered SQL files that run once in every shard."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from shardctl import inputs
from shardctl.errors import UsageError
from shardctl.postgres import split

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"(\d{4,})_[^/\\]+\.sql")
_NO_TRANSACTION = "-- shardctl: no-transaction"


class MigrationInvalid(UsageError):
    """A migration file, or the folder, that cannot be used; nothing was contacted."""

    def __init__(self, where: str, what: str, *, hint: str = "") -> None:
        super().__init__(f"{where}: {what}", hint=hint)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file; it is not transactional where `-- shardctl: no-transaction` is its first line."""

    file: Path
    number: int
    text: str
    checksum: str
    transactional: bool

    @property
    def name(self) -> str:
        """The file's name, which stands for it in `shardctl.migration`."""
        return self.file.name

    def statements(self) -> list[split.Statement]:
        """Split the text, to run or to locate its statements one by one."""
        return split.split(self.text)


def read(folder: Path | None) -> tuple[Migration, ...]:
    """Read the folder's migrations in the order of their numbers; None is an empty folder.

    Raises MigrationInvalid: the folder is missing, a file of another name than NNNN_name.sql (only
    `.sql` files count), two with one number, one that is not UTF-8 or that controls transactions.
    """
    if folder is None:
        return ()
    if not folder.is_dir():
        raise MigrationInvalid(
            str(folder),
            "no such folder of migrations",
            hint="create it, or remove `database.migrations` from the topology",
        )
    files = map(_read_file, sorted(folder.glob("*.sql")))
    found = sorted(files, key=lambda migration: migration.number)
    for first, second in pairwise(found):
        if first.number == second.number:
            raise MigrationInvalid(str(second.file), f"has the same number as {first.name}")
    return tuple(found)


def _read_file(file: Path) -> Migration:
    name = _NAME.fullmatch(file.name)
    if name is None:
        raise MigrationInvalid(str(file), "expected a name such as 0001_photos.sql (NNNN_name.sql)")
    try:
        content = inputs.read(file, inputs.MOST_SQL)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MigrationInvalid(str(file), f"cannot be read: {why}") from error
    if "\0" in text:
        raise MigrationInvalid(str(file), "holds a zero byte")
    first_line = text.split("\n", 1)[0].strip()
    migration = Migration(
        file=file,
        number=int(name[1]),
        text=text,
        checksum=hashlib.sha256(content).hexdigest(),
        transactional=first_line != _NO_TRANSACTION,
    )
    for statement in migration.statements():
        if statement.streams:
            raise MigrationInvalid(
                f"{file}:{statement.line}",
                "COPY with STDIN or STDOUT is not supported in a migration",
                hint="use INSERT instead",
            )
        if (word := statement.ends) is not None:  # the transaction that a chunk of shards shares
            raise MigrationInvalid(
                f"{file}:{statement.line}",
                f"{word} is not supported in a migration: shardctl runs many shards "
                "in one transaction",
                hint="remove it; to run without a transaction, begin the file with "
                f"`{_NO_TRANSACTION}`",
            )
    return migration
