"""Writes what the code knows into the documents: ``make docs``. ``tests/unit/test_docs.py`` holds them to it.

Each table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` in the README; everything around it
is written by hand.
"""

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from proxy import __version__, errors
from proxy.config.describe import descriptions
from proxy.telemetry.metrics import Gauges, Metrics

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
EXAMPLE = ROOT / "docker" / "proxy.env.example"

_EXAMPLE_HEAD = """\
# Every setting of Bulwark, with its default. Made by `make docs`; copy it and edit the copy.
#
# A name that is not in this list is an error, and so is a value out of its bounds; `bulwark check`
# tells all that is wrong at once. A secret NAME may be given as the path of a file, in NAME_FILE.
"""


def tables() -> dict[str, str]:
    """The README's tables by the name of their markers."""
    return {"settings": _settings(), "errors": _errors(), "metrics": _metrics()}


def readme(text: str) -> str:
    """The README with its tables as the code has them.

    Raises:
        ValueError: A table has no place in it.
    """
    for name, table in tables().items():
        before, opening, rest = text.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition(f"<!-- /{name} -->")
        if not closing:
            raise ValueError(f"the README has no place for the table {name}")
        text = f"{before}{opening}\n{table}\n{closing}{after}"
    return text


def example() -> str:
    """The example of an environment file: every setting, each commented out at its default."""
    blocks = [_EXAMPLE_HEAD]
    for row in descriptions():
        bound = f"{row.unit}, {row.bound}" if row.unit else row.bound
        also = f" Also {row.name}_FILE." if row.secret else ""
        blocks.append(f"# {_plain(row.meaning)} ({bound}){also}\n#{row.name}={row.default}\n")
    return "\n".join(blocks)


def concrete_errors() -> Iterator[type[errors.ProxyError]]:
    """The errors that are raised, in the order of their statuses."""
    classes = (
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.ProxyError) and hasattr(value, "reason")
    )
    return iter(sorted(classes, key=lambda cls: (cls.status, cls.reason)))


def series() -> Iterator[MetricWrapperBase]:
    """Every series that the server has."""
    registry = CollectorRegistry()
    Metrics(registry, version=__version__).watch(
        Gauges(slots_in_use=lambda: 0, queued=lambda: 0, buffered_bytes=lambda: 0)
    )
    for collector in list(registry._collector_to_names):  # noqa: SLF001 -- has no other list
        if isinstance(collector, MetricWrapperBase):
            yield collector


def _settings() -> str:
    return _table(
        ("name", "unit", "default", "bound", "meaning"),
        (
            (
                f"`{row.name}`" + ("<br>`…_FILE`" if row.secret else ""),
                row.unit,
                f"`{row.default}`" if row.default else "",
                row.bound,
                row.meaning,
            )
            for row in descriptions()
        ),
    )


def _errors() -> str:
    return _table(
        ("status", "code", "meaning"),
        (
            (str(cls.status), f"`{cls.reason}`", _first_line(cls.__doc__))
            for cls in concrete_errors()
        ),
    )


def _metrics() -> str:
    return _table(
        ("name", "type", "labels", "meaning"), (_metric(collector) for collector in series())
    )


def _metric(collector: MetricWrapperBase) -> tuple[str, ...]:
    (metric,) = collector.describe()
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    labels = ", ".join(f"`{label}`" for label in collector._labelnames)  # noqa: SLF001 -- no other way
    return f"`{metric.name}{suffix}`", metric.type, labels, metric.documentation


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _first_line(docstring: str | None) -> str:
    return (docstring or "").strip().partition("\n")[0].replace("``", "`")


def _plain(markdown: str) -> str:
    return markdown.replace("`", "")


def main() -> None:
    """Writes both files."""
    README.write_text(readme(README.read_text("utf-8")), "utf-8")
    EXAMPLE.parent.mkdir(exist_ok=True)
    EXAMPLE.write_text(example(), "utf-8")


if __name__ == "__main__":
    main()
