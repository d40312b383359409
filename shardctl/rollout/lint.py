"""Warn of statements that hurt when they run in every shard: squawk's rules, and some of our own.

squawk parses; `pip install shardctl[lint]` brings it, and without it only our own rules apply.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.errors import Refused, UsageError
from shardctl.postgres import OLDEST_MAJOR, split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.state.migrations import Migration

RULES = (
    "adding-field-with-default",
    "adding-foreign-key-constraint",
    "adding-not-nullable-field",
    "adding-required-field",
    "adding-serial-primary-key-field",
    "ban-drop-column",
    "ban-drop-database",
    "ban-drop-table",
    "ban-truncate-cascade",
    "changing-column-type",
    "constraint-missing-not-valid",
    "disallowed-unique-constraint",
    "require-concurrent-index-creation",
    "require-concurrent-index-deletion",
    "require-concurrent-reindex",
)
"""squawk's rules about locks, rewrites, and what clients or a down part cannot get back.

The others are about style, names, or settings that shardctl makes itself.
"""
_SYNTAX = "syntax-error"
_GENERAL = "constraint-missing-not-valid"
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Warned:
    """A statement that has to be accepted."""

    migration: Migration
    line: int
    rule: str
    message: str

    @property
    def text(self) -> str:
        """Name the place, the rule and what it is about."""
        return f"{self.migration.file}:{self.line}: {self.rule}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "file": self.migration.name,
            "line": self.line,
            "rule": self.rule,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All warnings, in the order of the files, and what could not be examined."""

    warnings: tuple[Warned, ...]
    notes: tuple[str, ...]


def program() -> str | None:
    """Find squawk beside this Python, then on the path; None: it is not installed."""
    beside = Path(sys.executable).with_name("squawk")
    return str(beside) if beside.is_file() else shutil.which("squawk")


def look(migrations: Sequence[Migration], squawk: str | None) -> Report:
    """Examine files that are about to run, in their order."""
    found = [one for migration in migrations for one in _own(migration)]
    notes: list[str] = []
    if not migrations:
        return Report((), ())
    if squawk is None:
        notes.append(
            "the migrations were not linted: squawk is not installed (`pip install "
            "'shardctl[lint]'` installs it)"
        )
    else:
        found += _squawk(migrations, squawk, notes)
    place = {migration.name: number for number, migration in enumerate(migrations)}
    found.sort(key=lambda one: (place[one.migration.name], one.line, one.rule))
    return Report(tuple(found), tuple(notes))


def _own(migration: Migration) -> Iterator[Warned]:
    """Apply the rules that squawk lacks."""
    for statement in migration.statements():
        words = [lexeme.upper() for lexeme in split.lexemes(statement.text)]
        if what := _rewrites(words):
            yield Warned(
                migration,
                statement.line,
                "rewrites-table",
                f"{what} rewrites the table, and blocks all reads and writes until it ends",
            )
        if words[:1] == ["TRUNCATE"]:
            yield Warned(
                migration, statement.line, "loses-rows", "TRUNCATE deletes rows that no down "
                "part can restore"
            )  # fmt: skip


def _rewrites(words: Sequence[str]) -> str | None:
    if words[:1] == ["CLUSTER"]:
        return "CLUSTER"
    if words[:1] == ["VACUUM"] and "FULL" in words:
        return "VACUUM FULL"
    if words[:2] == ["ALTER", "TABLE"]:
        for first, second in pairwise(words):
            if first == "SET" and second in ("LOGGED", "UNLOGGED", "TABLESPACE"):
                return f"SET {second}"
    return None


def _squawk(migrations: Sequence[Migration], squawk: str, notes: list[str]) -> list[Warned]:
    """Let squawk parse all files as one text, in which later files know earlier tables.

    It examines nothing of a text that it cannot parse: then each file is examined by itself.
    """
    found = _parse(migrations, squawk)
    if not any(rule == _SYNTAX for _, _, rule, _ in found):
        return _judged(found)
    kept: list[tuple[Migration, int, str, str]] = []
    for migration in migrations:
        alone = _parse([migration], squawk)
        wrong = [one for one in alone if one[2] == _SYNTAX]
        if wrong:
            _, line, _, message = wrong[0]
            notes.append(f"{migration.file}:{line}: squawk cannot read it: {message}")
        else:
            kept += alone
    return _judged(kept)


def _judged(found: Sequence[tuple[Migration, int, str, str]]) -> list[Warned]:
    """Keep the rules that count, and of two about one statement the more specific one."""
    lines = {(migration.name, line) for migration, line, rule, _ in found if rule in RULES
             and rule != _GENERAL}  # fmt: skip
    return [
        Warned(migration, line, rule, message)
        for migration, line, rule, message in found
        if rule in RULES and not (rule == _GENERAL and (migration.name, line) in lines)
    ]


def _parse(migrations: Sequence[Migration], squawk: str) -> list[tuple[Migration, int, str, str]]:
    """Run squawk on a text of several files; give file, line, rule and message."""
    texts = [f"{one.text}\n;\n" for one in migrations]
    # A table that the same transaction makes is new: no session waits for it.
    argv = [squawk, "--reporter", "json", "--assume-in-transaction"]
    argv += ["--pg-version", f"{OLDEST_MAJOR}.0"]
    try:
        done = subprocess.run(
            argv,
            input="".join(texts),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_TIMEOUT_S,
            check=False,
        )
        rows = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Refused(
            "lint_failed",
            f"squawk could not examine the migrations: {error}",
            hint=f"run `{squawk} --version`; install it again with `pip install 'shardctl[lint]'`",
        ) from error
    starts: list[int] = []
    line = 0
    for text in texts:
        starts.append(line)
        line += text.count("\n")
    found = []
    for row in rows:
        number = max(n for n, start in enumerate(starts) if start <= row["line"])
        at = row["line"] - starts[number] + 1
        found.append((migrations[number], at, row["rule_name"], row["message"]))
    return found


def accepted(one: Warned, accepts: Sequence[str]) -> bool:
    """Return whether a warning is among those that an operator accepts, as FILE or FILE:RULE.

    FILE is the number or the name of a file.
    """
    for text in accepts:
        file, _, rule = text.partition(":")
        named = file == one.migration.name or (
            file.isdecimal() and int(file) == one.migration.number
        )
        if named and rule in ("", one.rule):
            return True
    return False


def require_accepted(warnings: Sequence[Warned], accepts: Sequence[str]) -> None:
    """Refuse warnings that were not accepted; raises lint_warnings."""
    left = [one for one in warnings if not accepted(one, accepts)]
    if left:
        needed = dict.fromkeys(f"{one.migration.number:04}:{one.rule}" for one in left)
        raise Refused(
            "lint_warnings",
            "\n".join(one.text for one in left),
            hint="change the statements, or accept them with "
            + " ".join(f"--accept {text}" for text in needed),
        )


def require_known(accepts: Sequence[str]) -> None:
    """See that each value of --accept names a file and a rule that exists; raises UsageError."""
    known = {*RULES, "rewrites-table", "loses-rows"}
    for text in accepts:
        file, colon, rule = text.partition(":")
        if not file or (colon and rule not in known):
            raise UsageError(
                f"--accept {text}: expected FILE or FILE:RULE",
                hint=f"for example 0003:ban-drop-column; rules: {', '.join(sorted(known))}",
            )
