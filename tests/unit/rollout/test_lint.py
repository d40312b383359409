"""What the lint warns of, on squawk itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.errors import Refused, UsageError
from shardctl.rollout import lint
from shardctl.state import migrations

if TYPE_CHECKING:
    from pathlib import Path


def report(folder: Path, *texts: str) -> lint.Report:
    for number, text in enumerate(texts, 1):
        (folder / f"{number:04}_file.sql").write_text(text)
    squawk = lint.program()
    assert squawk is not None
    return lint.look(migrations.read(folder), squawk)


def found(folder: Path, *texts: str) -> list[tuple[int, int, str]]:
    return [(one.migration.number, one.line, one.rule) for one in report(folder, *texts).warnings]


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("ALTER TABLE t ADD COLUMN n float DEFAULT random()", "adding-field-with-default"),
        ("ALTER TABLE t ADD COLUMN n int NOT NULL", "adding-required-field"),
        ("CREATE INDEX i ON t (n)", "require-concurrent-index-creation"),
        ("DROP INDEX i", "require-concurrent-index-deletion"),
        ("REINDEX TABLE t", "require-concurrent-reindex"),
        ("ALTER TABLE t ALTER COLUMN n TYPE bigint", "changing-column-type"),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (n > 0)", "constraint-missing-not-valid"),
        ("ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES u (n)", "adding-foreign-key-constraint"),
        ("ALTER TABLE t ADD UNIQUE (n)", "disallowed-unique-constraint"),
        ("ALTER TABLE t ADD PRIMARY KEY (n)", "adding-serial-primary-key-field"),
        ("ALTER TABLE t ALTER n SET NOT NULL", "adding-not-nullable-field"),
        ("ALTER TABLE t DROP COLUMN n", "ban-drop-column"),
        ("DROP TABLE t", "ban-drop-table"),
        ("CLUSTER t USING i", "rewrites-table"),
        ("ALTER TABLE t SET TABLESPACE fast", "rewrites-table"),
        ("ALTER TABLE t SET LOGGED", "rewrites-table"),
        ("TRUNCATE t", "loses-rows"),
    ],
)
def test_what_hurts_is_named_once_with_its_line(tmp_path: Path, statement: str, rule: str) -> None:
    assert found(tmp_path, f"SELECT 1;\n\n{statement};") == [(1, 3, rule)]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (n int); CREATE INDEX i ON t (n); ALTER TABLE t ADD UNIQUE (n);",
        "ALTER TABLE t ADD COLUMN n int NOT NULL DEFAULT 0;",
        "ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME COLUMN n TO m;",
        "ALTER TABLE t ADD CONSTRAINT c CHECK (n > 0) NOT VALID;",
        "-- shardctl: no-transaction\nCREATE INDEX CONCURRENTLY i ON t (n);",
        "SELECT 'DROP TABLE t; TRUNCATE t'; -- CLUSTER t",
        "ALTER TABLE t ADD COLUMN n int;\n-- shardctl: down\nALTER TABLE t DROP COLUMN n;",
        "-- squawk-ignore ban-drop-table\nDROP TABLE t;",
    ],
)  # fmt: skip
def test_what_does_not_hurt_is_not_warned_of(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_a_table_of_an_earlier_file_is_known_to_be_new(tmp_path: Path) -> None:
    assert found(tmp_path, "CREATE TABLE t (n int);", "\nCREATE INDEX i ON t (n);") == []
    assert found(tmp_path, "CREATE TABLE t (n int)", "\nCREATE INDEX i ON u (n)") == [
        (2, 2, "require-concurrent-index-creation")
    ]


def test_a_file_that_cannot_be_parsed_does_not_hide_the_others(tmp_path: Path) -> None:
    seen = report(tmp_path, "\nCREATE TABEL t ();", "DROP TABLE t;")
    assert [(one.migration.number, one.rule) for one in seen.warnings] == [(2, "ban-drop-table")]
    [note] = seen.notes
    assert note.startswith(f"{tmp_path}/0001_file.sql:2: squawk cannot read it: ")


def test_a_program_that_is_not_squawk_is_reported(tmp_path: Path) -> None:
    (tmp_path / "0001_a.sql").write_text("SELECT 1")
    with pytest.raises(Refused, match="squawk could not examine") as refused:
        lint.look(migrations.read(tmp_path), "/bin/false")
    assert refused.value.code == "lint_failed"


def test_accepting_is_per_file_and_rule(tmp_path: Path) -> None:
    [one] = report(tmp_path, "DROP TABLE t;").warnings
    for text in ("1", "0001", "0001_file.sql", "1:ban-drop-table"):
        assert lint.accepted(one, [text])
    for text in ("2", "0002:ban-drop-table", "1:ban-drop-column", "file"):
        assert not lint.accepted(one, [text])


@pytest.mark.parametrize("text", ["", ":ban-drop-table", "0001:", "0001:drop"])
def test_a_rule_that_does_not_exist_is_bad_usage(text: str) -> None:
    with pytest.raises(UsageError, match="expected FILE or FILE:RULE"):
        lint.require_known([text])
