"""Operator English: words and patterns that no message, hint, help text or page contains.

`found_in` searches a text, `spoken` lists the strings of a source file that people read.
`python -m tests.lint.language PATH...` shows what is found in files and folders.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

BANNED = {
    # One word for one thing.
    r"mend(s|ed|ing)?": "fix, repair",
    r"(is|are|was|were|does|do|stays?) (?!not )(\w+ )?yet": "still",
    r"tells?|told|telling": "report, show, print; tell apart: distinguish",
    r"says?|said|saying": "report, show, print, contain; of a person: specify",
    r"ways? (to|from|between) ((the|an?|every|each|its|that|this) )?"
    r"(hosts?|nodes?|poolers?|servers?|machines?|source|target|clone)": "connection, route",
    r"on (the|its) way": "in transit",
    r"lets? in|let(s|ting)? (\S+ ){0,3}(?<!log )in(?= again| from|[,.;:)]|$)": (
        "accept connections, reject connections, allow"
    ),
    r"let(s|ting)? ([\w{}]+ ){0,2}(go|pass)(?= of| on|[,.;:)]|$)": "release, resume, allow",
    r"stands?(?! for)|stood|standing": "is, exists",
    r"(is|are|was|were|be|been|being) (not )?there(?=[,.;:)]|$)": (
        "is reachable, is missing, exists"
    ),
    r"how far|(is|are) far(?! (too|more|less|behind))|far (hosts?|nodes?|poolers?|servers?)": (
        "remote with a round trip of N ms; how far: its phase"
    ),
    r"(is|are) near|near (hosts?|nodes?|poolers?|servers?)": "local; has caught up",
    r"call(s|ed|ing)?( \w+)? off": "abort",
    r"anew": "again, restarted",
    r"for good": "destroyed, permanently",
    r"by turns": "alternately",
    r"the world": "context",
    r"keepers?": "the nodes that hold the journal",
    r"fork(s|ed)?( of)?( the| a)? timelines?|timelines? forks?": "timeline switch, divergence",
    r"gates?": "pauses, paused poolers",
    r"crossings?": "cross-schema dependencies",
    r"there and back": "round trip",
    # A sentence names its actor.
    r"(some|no|any)body|someone|no one|who(m|ever)": "the program, node, session or person",
    r"others": "the other nodes, the other shards",
    r"(is|are) at it|(is|are) at work": "is running",
    # A sentence is read once.
    r"(?<!there )(is|are) no(?= (?!longer|more|greater|different|match|such|other)\w)": (
        "unknown node 'x'; is not a node; owns no shards"
    ),
    r"of which|that what": "two sentences",
    r"is not (known|clear)|whether all is well": "unknown, could not be checked; specify X",
    r"looked into|looks? into|looking": "check, connect to",
    r"should be:": "expected Y, found X",
    r"(has|have|had) not (ended|begun)": "is still running, has not started",
    r"made so": "describe how",
    r"in vain": "would time out",
    r"meanwhile": "until then, during the move",
    r"wants?|wanted|wanting": "requires, expects, expected",
    r"alone": "only",
    r"has (a|its|no) place": "is not supported",
    r"(nothing|something) c[ao]me of": "failed",
    r"as \w+ takes it": "describe the format",
    r"takes? (it |them )?apart|taken apart": "split",
    r"left to it": "name what finishes it, and when",
    r"gives? no sign|answers? nothing|answers? no more": "does not respond",
    r"is neither": "is not X or Y",
}
"""Words (whole ones, in any case) -> what to write instead."""

ALLOWED = {
    r"leaves? (\w+ ){1,3}alone": "an idiom of its own",
    r"the user who|the role who": "the actor is named",
}
"""Words that are right although a banned one is part of them -> the reason."""

_ALLOWED = re.compile("|".join(ALLOWED), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """Words that should be written otherwise, in a line of a text."""

    line: int
    words: str
    write: str

    def __str__(self) -> str:
        """Show it as a compiler does."""
        return f"{self.line}: {self.words!r}: write {self.write}"


@cache
def _finders() -> list[tuple[re.Pattern[str], str]]:
    return [
        (re.compile(rf"(?<![\w$./-])(?:{words})(?![\w-])", re.IGNORECASE), write)
        for words, write in BANNED.items()
    ]


def found_in(text: str, *, line: int = 1) -> list[Found]:
    """List the banned words of a text that begins in `line`, in the order of the text."""
    plain = _ALLOWED.sub(lambda words: "_" * len(words[0]), text).replace("\n", " ")
    hits = sorted(
        (hit.start(), hit[0], write) for find, write in _finders() for hit in find.finditer(plain)
    )
    return [Found(line + text.count("\n", 0, at), words, write) for at, words, write in hits]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A string that people read, and the line in which it begins; `{}` where a value comes."""

    line: int
    text: str


def spoken(path: Path) -> list[Spoken]:
    """List what people read of a source file: of Python, SQL, a shell script, a template."""
    text = path.read_text(encoding="utf-8")
    found = _of_python(ast.parse(text), path) if path.suffix == ".py" else _of_other(text)
    return [one for one in found if " " in one.text.strip()]


def _of_python(tree: ast.Module, path: Path) -> Iterator[Spoken]:
    """Give all strings but docstrings, and of these what becomes a help text or a page.

    Those are the docstrings of commands, of errors, and of functions that report one.
    """
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    yield from _strings(tree, docs)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (doc := ast.get_docstring(node)):
            command = path.parent.name == "cli" and bool(getattr(node, "decorator_list", []))
            error = isinstance(node, ast.ClassDef) and _is_error(node)
            if command or error or doc.startswith("Report "):
                yield Spoken(node.body[0].lineno, doc)


def _is_error(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    known = {"ShardctlError", "UsageError", "Unfinished", "Refused", "Misused", "Incomplete"}
    return bool(bases & known)


def _strings(node: ast.AST, docs: set[int]) -> Iterator[Spoken]:
    if isinstance(node, ast.JoinedStr):
        parts = [one.value if isinstance(one, ast.Constant) else "{}" for one in node.values]
        yield Spoken(node.lineno, "".join(map(str, parts)))
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                yield from _strings(one.value, docs)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and id(node) not in docs:
            yield Spoken(node.lineno, node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child, docs)


_HEADER = re.compile(r"^-- check: .*\n((?:-- .*\n)+)", re.MULTILINE)
_KEY = re.compile(r"^-- *(\w+:)? *", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?\w+")
_LITERAL = re.compile(r"""'([^'\n]*)'|"([^"\n]*)\"""")


def _of_other(text: str) -> Iterator[Spoken]:
    """Give quoted texts; of an INI template its comments, too, which are part of what is made.

    And what `moves/preflight/checks*.sql` say of an answer, in the comment before the query.
    """
    for head in _HEADER.finditer(text):
        yield Spoken(text.count("\n", 0, head.start(1)) + 1, _KEY.sub("", head[1]))
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(";"):
            yield Spoken(number, line)
        elif not line.lstrip().startswith(("#", "--", "{#")):
            for hit in _LITERAL.finditer(line):
                yield Spoken(number, _VARIABLE.sub("{}", hit[1] or hit[2] or ""))


def files(path: Path) -> list[Path]:
    """List the source files of a folder, or the one file that it is, in order."""
    kinds = {".py", ".sql", ".sh", ".j2"}
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in kinds)


def complaints(path: Path) -> list[str]:
    """List what is found in the strings of a file or folder, or in a page, each with its place."""
    return [
        f"{file.relative_to(ROOT)}:{found}"
        for file in files(path)
        for found in chain.from_iterable(
            [found_in(file.read_text(encoding="utf-8"))]
            if file.suffix == ".md"
            else (found_in(one.text, line=one.line) for one in spoken(file))
        )
    ]


if __name__ == "__main__":
    print("\n".join(chain.from_iterable(complaints(Path(at).absolute()) for at in sys.argv[1:])))  # noqa: T201
