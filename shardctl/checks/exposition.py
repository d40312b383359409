"""The Prometheus text format 0.0.4: metrics as lines that Prometheus and node_exporter read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Gauge:
    """One metric: its name without the prefix, what it means, and its samples by their labels."""

    name: str
    help: str
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def add(self, value: float | None, **labels: str) -> None:
        """Add a sample; None, which is what is unknown, adds none.

        Of several with equal labels the largest counts: two lines for one series would make
        node_exporter refuse the whole file.
        """
        if value is not None:
            key = tuple(labels.items())
            self.samples[key] = max(value, self.samples.get(key, value))


def render(gauges: Iterable[Gauge], *, prefix: str, labels: Mapping[str, str]) -> str:
    r"""Write gauges, each sample with `labels` before its own; one without samples is left out.

    >>> up = Gauge("node_up", "1 if it is.")
    >>> up.add(1, node='a "b"')
    >>> print(render([up], prefix="x_", labels={"cluster": "c"}), end="")
    # HELP x_node_up 1 if it is.
    # TYPE x_node_up gauge
    x_node_up{cluster="c",node="a \"b\""} 1
    """
    lines = (line for gauge in gauges for line in _lines(gauge, prefix, tuple(labels.items())))
    return "".join(f"{line}\n" for line in lines)


def _lines(gauge: Gauge, prefix: str, shared: tuple[tuple[str, str], ...]) -> Iterator[str]:
    if not gauge.samples:
        return
    name = f"{prefix}{gauge.name}"
    about = gauge.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} gauge"
    for own, value in gauge.samples.items():
        labels = ",".join(f'{label}="{escaped(text)}"' for label, text in (*shared, *own))
        yield f"{name}{{{labels}}} {_number(value)}"


def escaped(text: str) -> str:
    r"""Escape the value of a label.

    >>> print(escaped('a\\b "c"\n'))
    a\\b \"c\"\n
    """
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """Write a value: whole numbers with every digit.

    >>> _number(2**53), _number(0.25), _number(True)
    ('9007199254740992', '0.25', '1')
    """
    return str(int(value)) if value == int(value) else repr(float(value))
