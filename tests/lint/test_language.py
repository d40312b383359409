"""Operator English: what people read has no word of the list in tests/lint/language.py.

One case a package, so that each can be run alone: `-k checks`. `test_pages` searches the pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lint.language import ROOT, complaints, files, found_in, spoken

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = sorted(p for p in (ROOT / "shardctl").iterdir() if files(p))

BEFORE = (
    "mend the cause: whether all is well there is not known",
    "has shard 3 alone, of which there is no half",
    "it lets in, and then answers no more",
    "not all of it is undone, the guards are left to it",
    "'x' is no method of a move",
    "which shards is not clear",
    "looking",
    "waits until it is near",
    "mend that, then run it again",
    "cannot be looked into",
    "a clone is made so: let the role have REPLICATION",
    "move 7 from d to f has not ended (it is reserved)",
    "owns no shards and is not there",
    "a move that somebody is at",
    "it was called off",
    "As pg_basebackup takes it.",
    "Standbys of the source are not promoted meanwhile.",
    "One word, which a shell there takes apart.",
    "would wait for such ones in vain",
    "the triggers let writes in, and are there yet",
    "let this host in: pg_hba.conf of that server",
    "the clone was told to be promoted",
    "a password never stands in the topology",
    "wanted for good, in all the world; whoever calls it off",
    "`shardctl moves show` tells how far it is",
)
AFTER = (
    "fix this first: node c could not be checked",
    "node c owns only shard 3, so --half has nothing to move",
    "the server accepted the connection and then stopped responding",
    "the cutover could not be undone completely; the guards on p1 and a will finish it within 6 s",
    "unknown method 'x': choose clone or stream",
    "specify SHARDS, or --from NODE with --half or --all",
    "checking structure",
    "waits for replication to catch up",
    "fix this, then run it again",
    "cannot connect to database x: add a pg_hba.conf entry",
    "cloning needs a replication login: run ALTER ROLE ... REPLICATION",
    "move 7 (d to f, started by ann) is copying",
    "spare node c is down",
    "a running move",
    "Limit the copy rate, for example 50M",
    "Confirm that failover is disabled on the source",
    "Shell command, quoted",
    "the cutover would time out",
    "pooler logins to node c cannot be tested yet; there is no such role",
    "let the role log in; a standby leaves these files alone, so far",
)


@pytest.mark.parametrize("text", BEFORE)
def test_a_sentence_that_has_to_be_read_twice_is_found(text: str) -> None:
    assert found_in(text)


@pytest.mark.parametrize("text", AFTER)
def test_a_plain_sentence_is_not(text: str) -> None:
    assert not found_in(text)


def test_a_word_is_found_in_its_line_and_across_lines() -> None:
    assert [(one.line, one.words) for one in found_in("a\nit is not\nthere, mend", line=5)] == [
        (6, "is not there"),
        (7, "mend"),
    ]


def test_what_people_read_of_a_file_are_its_strings_and_the_helps(tmp_path: Path) -> None:
    source = tmp_path / "cli" / "one.py"
    source.parent.mkdir()
    source.write_text(
        '"""No help."""\n'
        "@app.command()\ndef one():\n    '''A help.'''\n    say(f'{1} to {a(\"in it\")} go')\n"
        "class Two(UsageError):\n    '''A page.'''\n"
        "def three():\n    '''Report an error.'''\n"
        "def four():\n    '''No help.'''\n"
    )
    assert [one.text for one in spoken(source)] == [
        "{} to {} go",
        "in it",
        "A help.",
        "A page.",
        "Report an error.",
    ]
    script = tmp_path / "one.sql"
    script.write_text("-- 'no message'\nRAISE EXCEPTION 'shard % is read-only';\n")
    assert [one.text for one in spoken(script)] == ["shard % is read-only"]
    script.write_text("-- check: one\n-- a_code:\n--   says: it is\n--     anew\nSELECT 1\n")
    (found,) = spoken(script)
    assert [one.line for one in found_in(found.text, line=found.line)] == [4]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_messages_and_help_are_operator_english(package: Path) -> None:
    assert not complaints(package)
