"""Which texts may be run in shards, and what is written down of them."""

from __future__ import annotations

import pytest

from shardctl.maintenance.sql import for_log, parse
from tests.fixtures.refusals import raises_code


@pytest.mark.parametrize(
    "text",
    [
        "", " -- nothing\n ; ", "SELECT 1;\ncommit", "start transaction", "PREPARE TRANSACTION 'x'",
        "COPY (SELECT 1) TO stdout", "SELECT '\0'",
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(text: str) -> None:
    with raises_code("statement_invalid"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["PREPARE q AS SELECT 1", "SELECT 'COMMIT; COMMIT'", "COPY t FROM '/var/t.csv'", "SAVEPOINT a"],
)
def test_what_only_looks_like_it_is_not(text: str) -> None:
    assert [one.text for one in parse(text)] == [text]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER ROLE ann PASSWORD 'hunter2'",
        "alter role ann encrypted password E'hunter\\'2'",
        "SELECT dblink('host=a password = ''hunter2'' port=1')",
        "CREATE USER MAPPING FOR ann SERVER s OPTIONS (\"password\" 'hunter2')",
        "ALTER ROLE ann PASSWORD /* a /* b */ c */ -- d\n 'hunter2'",
        "ALTER ROLE ann PASSWORD 'hunter2'\n 'hunter3'",
        "ALTER ROLE ann PASSWORD U&'hunter2'",
        "ALTER ROLE ann PASSWORD $x$hunter2 was cut of",
        "DO $$ BEGIN EXECUTE E'ALTER ROLE ann PASSWORD \\'hunter2\\''; END $$",
        "/* a */ /* password=hunter2 */ SELECT 1",
        "-- it's\nALTER ROLE ann PASSWORD 'hunter2'",
        "ALTER ROLE \"ann's\" PASSWORD 'hunter2'",
        "UPDATE users SET password = crypt( 'hunter2', gen_salt('bf'))",
        "SELECT set_config('app.password','hunter2',false)",
        "SELECT set_config('app.password'::pg_catalog.text, 'hunter2'::text, false)",
        "SELECT set_config(setting_name => 'app.password', new_value => E'hunter2')",
        "SELECT set_config('app.password', 'hunter2 was cut of",
        "INSERT INTO settings VALUES ('password', 'hunter2')",
        "ALTER ROLE ann SET LOCAL app . password TO hunter2",
        "SELECT dblink('postgresql://ann:hunter2@h/app')",
        "psql postgresql://ann:hunter@2/hunter@h/app",
        "echo it's; PGPASSWORD='hunter2' psql -c 'SELECT 1'",
        "psql \"host=h password='hunter2 and hunter3'\"",
        "CREATE SUBSCRIPTION s CONNECTION 'password=a' PUBLICATION p; -- PASSWORD 'hunter2'",
        "SELECT f(password:=$a$ hunter2 $a$), quote(password=>quote_literal('x hunter2'))",
        "SELECT dblink('password=$$x hunter2$$'), dblink(' password=a'), 'hunter2'",
        'curl -d \'{"password": "hunter2"}\' h',
        "password=a(hunter2",
        "SELECT 'password=hunter2'" + "-- password\n" * 2000,
        "$a$ $b$ $c$ $d$ $e$ $f$ $g$ $h$ $i$ $j$ $k$ password=hunter2",
    ],
)
def test_a_password_is_not_told(text: str) -> None:
    assert "hunter" not in for_log(text)
    assert "***" in for_log(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT password FROM users",
        "SELECT 'postgresql://ann@h:5432/app' -- it''s",
        'FATAL: password authentication failed for user "ann"',
    ],
)
def test_what_is_no_password_is_told(text: str) -> None:
    assert for_log(text) == text


def test_a_number_that_is_a_password_is_not_told() -> None:
    text = "SELECT set_config('app.password', 12345::text, false), x6"
    assert for_log(text) == "SELECT set_config('***', '***'::text, false), x6"


def test_the_rest_of_a_statement_is_told() -> None:
    text = "ALTER ROLE ann PASSWORD 'hunter2'; DROP ROLE bob"
    assert for_log(text) == text.replace("hunter2", "***")
