"""The SQL that makes ids in the database: the shared functions and each shard's wrapper."""

from __future__ import annotations

import functools
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.ids.layout import HASH_DIGITS, Layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    import jinja2


COUNTER = "next_id_seq"
"""Each shard's counter: every id draws from it once."""

REGISTER = "next_id_block"
"""Each shard's register: the number of the open block, and the time when it was opened."""

WRAPPER = "next_id"

_FUNCTION = re.compile(
    r"^CREATE OR REPLACE FUNCTION shardctl\.(\w+)\(([^)]*)\)\s+RETURNS [^\n]*? LANGUAGE \w+"
    r"([A-Z ]*?)(?: SET (\w+) = ([^\n]*?))? AS \$shardctl\$(.*?)\$shardctl\$;",
    re.DOTALL | re.MULTILINE,
)


def render(settings: object, generator: str, shard_count: int, key_rule: str = "modulo") -> str:
    """Return the statements that create or replace the functions of schema `shardctl`.

    `settings` are a topology's, for `Layout.of`. `generator` is `strict` (blocks, no duplicates) or
    `classic` (the published arithmetic); `shard_count` is the modulus of `shard_of`, with
    `key_rule` `id` of texts and UUIDs only.
    """
    layout = Layout.of(settings)
    time_bits = layout.usable_time_bits
    block_mask = (1 << 63 - time_bits) - 1
    template = _environment().get_template("generator.sql.j2")
    # The register: above `time_bits`, the block number modulo what is left of 63 bits.
    return template.render(
        asdict(layout) | {"time_bits": time_bits},
        generator=generator,
        sequence_mask=(1 << layout.sequence_bits) - 1,
        shard_mask=layout.max_shard,
        all_time_mask=(1 << layout.time_bits) - 1,
        time_mask=(1 << time_bits) - 1,
        block_mask=block_mask,
        shard_count=int(shard_count),
        hash_digits=HASH_DIGITS,
        key_rule=key_rule,
        highest_id=layout.highest_id,
    )


def bodies(rendered: str) -> dict[str, str]:
    """Return the functions in rendered SQL, by name and argument types.

    Each value is the body (`prosrc`), a line with its setting, one where it is a SECURITY DEFINER,
    and a line with its other attributes (`IMMUTABLE STRICT PARALLEL SAFE`).
    """
    return {
        f"{name}({_types(arguments)})": body
        + (f"\n{setting}={value}" if setting else "")
        + ("\nSECURITY DEFINER" if "DEFINER" in declared else "")
        + f"\n{' '.join(declared.replace('SECURITY DEFINER', '').split())}"
        for name, arguments, declared, setting, value, body in _FUNCTION.findall(rendered)
    }


def names(signatures: Iterable[str]) -> list[str]:
    """Return the names of functions, each once.

    >>> names(["shard_of(bigint)", "shard_of(text)", "id_shard(bigint)"])
    ['shard_of', 'id_shard']
    """
    return list(dict.fromkeys(signature.partition("(")[0] for signature in signatures))


def _types(arguments: str) -> str:
    """Return the types of declared arguments, in the form of the catalog's `format_type`.

    >>> _types("shard integer, not_before timestamp with time zone DEFAULT NULL")
    'integer, timestamp with time zone'
    """
    declared = (one.partition(" DEFAULT ")[0].split(maxsplit=1) for one in arguments.split(","))
    return ", ".join(kind for _, kind in declared)


def wrapper_body(schema: str, shard: int) -> str:
    """Return the body of a shard's `next_id()`, a SQL function that the planner inlines.

    It contains names, not OIDs: they are resolved again after the fence's rename is undone.

    >>> print(wrapper_body("shard2", 2))  # doctest: +NORMALIZE_WHITESPACE
    SELECT shardctl.next_id('"shard2".next_id_seq'::pg_catalog.regclass,
    '"shard2".next_id_block'::pg_catalog.regclass, 2)
    """
    counter = quote_literal(f"{quote_identifier(schema)}.{COUNTER}")
    register = quote_literal(f"{quote_identifier(schema)}.{REGISTER}")
    return (
        f"SELECT shardctl.next_id({counter}::pg_catalog.regclass, "
        f"{register}::pg_catalog.regclass, {int(shard)})"
    )


def quote_identifier(name: str) -> str:
    """Quote a name for SQL.

    >>> print(quote_identifier('say "hi", please'))
    "say ""hi"", please"
    """
    return sql.Identifier(name).as_string()


def quote_literal(text: str) -> str:
    r"""Quote a string for SQL, independent of `standard_conforming_strings`.

    >>> quote_literal("it's")
    "'it''s'"
    >>> print(quote_literal("back\\slash"))
     E'back\\slash'
    """
    return sql.Literal(text).as_string()


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # noqa: PLC0415  # only init and verify need it

    return jinja2.Environment(
        loader=jinja2.PackageLoader("shardctl"),
        autoescape=False,  # noqa: S701  # SQL, not HTML; nothing but integers goes in
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
