"""The application's schema: numbered SQL files that run once in every shard."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from shardctl import inputs
from shardctl.errors import UsageError, together
from shardctl.postgres import split

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"(\d{4,})_[^/\\]+\.sql")
_NO_TRANSACTION = "-- shardctl: no-transaction"
_DOWN = re.compile(r"^--[ \t]*shardctl:[ \t]*down[ \t]*\r?$", re.MULTILINE)
_ALMOST_DOWN = re.compile(r"-+[ \t]*shardctl[ \t]*:[ \t]*down\b", re.IGNORECASE)
"""What was meant as such a line: without it, the way back would run as part of the file."""
_STREAM = re.compile(r"\b(stdin|stdout)\b", re.IGNORECASE)
_CONTROL = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "ABORT", "END"})
"""First words that would end the transaction which a chunk of shards shares."""


class MigrationInvalid(UsageError):
    """A migration file, or the folder, that cannot be used; nothing was contacted."""

    def __init__(self, where: str, what: str, *, hint: str = "") -> None:
        super().__init__(f"{where}: {what}", hint=hint)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file; it is not transactional where `-- shardctl: no-transaction` is its first line.

    `text` ends where a line `-- shardctl: down` begins the down part, which undoes it. The
    checksum is that of the bytes before this line: a down part may be added later.
    """

    file: Path
    number: int
    text: str
    checksum: str
    transactional: bool
    down: str | None = None
    """The down part, behind as many empty lines as the file has before it."""
    undoes: bool = False
    """Whether running it takes its row out of `shardctl.migration`: `text` is the down part."""

    @property
    def name(self) -> str:
        """The file's name, which stands for it in `shardctl.migration`."""
        return self.file.name

    def statements(self) -> list[split.Statement]:
        """Split the text, to run or to locate its statements one by one."""
        return split.split(self.text)

    def reversed(self) -> Migration:
        """Give what undoes it; its down part must exist."""
        if self.down is None:
            raise AssertionError(self.name)
        return replace(self, text=self.down, down=None, undoes=True)


def read(folder: Path | None) -> tuple[Migration, ...]:
    """Read the folder's migrations in the order of their numbers; None is an empty folder.

    Raises MigrationInvalid, or Problems of them: the folder is missing, a file of another
    name than NNNN_name.sql (only `.sql` files count), two with one number, one that is not
    UTF-8 or that controls transactions.
    """
    if folder is None:
        return ()
    if not folder.is_dir():
        raise MigrationInvalid(
            str(folder),
            "no such folder of migrations",
            hint="create it, or remove `database.migrations` from the topology",
        )
    found: list[Migration] = []
    problems: list[MigrationInvalid] = []
    for file in sorted(folder.glob("*.sql")):
        try:
            found.append(_read_file(file))
        except MigrationInvalid as problem:
            problems.append(problem)
    found.sort(key=lambda migration: migration.number)
    problems += [
        MigrationInvalid(str(second.file), f"has the same number as {first.name}")
        for first, second in pairwise(found)
        if first.number == second.number
    ]
    if problems:
        raise together(problems)
    return tuple(found)


def _read_file(file: Path) -> Migration:
    name = _NAME.fullmatch(file.name)
    if name is None:
        raise MigrationInvalid(str(file), "expected a name such as 0001_photos.sql (NNNN_name.sql)")
    try:
        content = inputs.read(file, inputs.MOST_SQL)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MigrationInvalid(str(file), f"is not UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise MigrationInvalid(str(file), f"cannot be read: {error.strerror}") from error
    if "\0" in text:
        raise MigrationInvalid(str(file), "holds a zero byte")
    first_line = text.split("\n", 1)[0].strip()
    up, down = _parts(text, str(file))
    # What was hashed before files had down parts is what is hashed of a file without one.
    hashed = content if down is None else content[: len(content) - len(text[len(up) :].encode())]
    migration = Migration(
        file=file,
        number=int(name[1]),
        text=up,
        checksum=hashlib.sha256(hashed).hexdigest(),
        transactional=first_line != _NO_TRANSACTION,
        down=down,
    )
    for one in (migration, *([migration.reversed()] if down is not None else [])):
        for statement in one.statements():
            _require_usable(one, statement)
    return migration


def _parts(text: str, where: str = "") -> tuple[str, str | None]:
    r"""Divide a text at the line that begins its down part; raises MigrationInvalid.

    >>> _parts("CREATE TABLE a ();\n-- shardctl: down\nDROP TABLE a;")
    ('CREATE TABLE a ();\n', '\n\nDROP TABLE a;')
    >>> _parts("SELECT '\n-- shardctl: down\n'")
    ("SELECT '\n-- shardctl: down\n'", None)
    """
    if _ALMOST_DOWN.search(text) is None:
        return text, None
    for comment in split.comments(text):
        if _ALMOST_DOWN.match(comment[0]) is None:
            continue
        found = _DOWN.match(text, comment.start())
        if found is None:
            raise MigrationInvalid(
                f"{where}:{text.count(chr(10), 0, comment.start()) + 1}",
                f"{comment[0].strip()[:60]!r} does not begin a down part",
                hint="write `-- shardctl: down`, in these letters, as a line of its own",
            )
        down = "\n" * text.count("\n", 0, found.end()) + text[found.end() :]
        return text[: found.start()], down
    return text, None


def _require_usable(migration: Migration, statement: split.Statement) -> None:
    """Refuse a statement that no migration may have; raises MigrationInvalid."""
    where = f"{migration.file}:{statement.line}"
    first, *rest = statement.first_words or ("",)
    if first == "COPY" and _STREAM.search(statement.text):
        raise MigrationInvalid(
            where,
            "COPY with STDIN or STDOUT is not supported in a migration",
            hint="use INSERT instead",
        )
    if first in _CONTROL or (first, *rest) in {
        ("START", "TRANSACTION"),
        ("PREPARE", "TRANSACTION"),
    }:
        raise MigrationInvalid(
            where,
            f"{first} is not supported in a migration: shardctl runs many shards "
            "in one transaction",
            hint="remove it; to run without a transaction, begin the file with "
            f"`{_NO_TRANSACTION}`",
        )
    if migration.transactional and concurrent_index(statement):
        raise MigrationInvalid(
            where,
            f"{first} INDEX CONCURRENTLY cannot run in a transaction",
            hint=f"begin the file with `{_NO_TRANSACTION}`, and keep other statements in a "
            "file of their own",
        )


def concurrent_index(statement: split.Statement) -> bool:
    """Return whether a statement makes or drops an index CONCURRENTLY.

    >>> [concurrent_index(one) for one in split.split(
    ...     "CREATE UNIQUE INDEX CONCURRENTLY i ON t (n); CREATE INDEX i ON t ('CONCURRENTLY')")]
    [True, False]
    """
    words = [lexeme.upper() for lexeme in islice(split.lexemes(statement.text), 5)]
    return (
        words[:1] in (["CREATE"], ["DROP"])
        and "CONCURRENTLY" in words
        and words[words.index("CONCURRENTLY") - 1] == "INDEX"
    )
