"""What an engine is asked once, by a person who wants to know what it holds. Not for the data path."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
import httpx

from proxy.upstream.exposition import PageRefused, Sample, samples
from proxy.upstream.readings import MAX_PAGE_BYTES, MAX_POOL_TOKENS, Reading, read
from proxy.upstream.target import Target

_SECONDS = 10.0
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 200, 401, 403, 404
_UNAVAILABLE = 503
_HISTOGRAMS = {
    "vllm": b"vllm:request_%b_tokens_bucket",
    "sglang": b"sglang:%b_tokens_histogram_bucket",
}

_MAX_COUNT = 2.0**53

_NO_PAGE = (
    "it has no metrics page: SGLang has one with --enable-metrics, llama.cpp with --metrics, and "
    "vLLM always"
)
_NO_ENGINE = "Neither /health nor /v1/models answers as an engine's does: perhaps this is no engine"
_REFUSED_PAGES: Mapping[str, str] = {
    "no_series": "its metrics page tells nothing of an engine: vLLM fills it unless it was started "
    "with --disable-log-stats",
    "impossible_pool": "its metrics page tells a KV cache of a size that cannot be",
    "too_large": "its metrics page is over 4 MiB",
    "too_complex": "its metrics page has more lines than any engine's",
}


class CannotTell(Exception):  # noqa: N818 - an expected answer is no error
    """The engine did not say what was asked; the message completes "… cannot be told by ENGINE: "."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the engine says of itself; None where it does not.

    Attributes:
        reading: Of its metrics.
        context_tokens: The most that one request may have, prompt and output.
        seats: How many requests it works on at once.
        median_prompt_tokens: Of the requests that it has answered.
    """

    reading: Reading | None
    context_tokens: int | None = None
    seats: int | None = None
    median_prompt_tokens: int | None = None
    median_output_tokens: int | None = None

    @property
    def pool_tokens(self) -> int | None:
        """Tokens that its KV cache holds."""
        return self.reading.pool_tokens if self.reading is not None else None


async def survey(
    transport: httpx.AsyncBaseTransport, target: Target, api_key: bytes | None
) -> Facts:
    """Asks the engine.

    Raises:
        CannotTell: It is not there, or tells neither its pool nor its seats.
    """
    asking = _Asking(transport, target, api_key)
    page, why = await asking.page()
    slots = await asking.json("/props") if page is None or page.reading.engine == "llamacpp" else {}
    seats = _whole(slots.get("total_slots"))
    if page is None and seats is None:
        raise CannotTell(why if await asking.is_an_engine() else f"{why}. {_NO_ENGINE}")
    if page is not None and page.reading.pool_tokens is None and seats is None:
        raise CannotTell("its metrics page does not tell the size of its KV cache")
    context = _context(await asking.json("/v1/models"))
    if page is None:
        return Facts(reading=None, context_tokens=context, seats=seats)
    if page.reading.engine == "sglang":
        seats = _sglang_seats(await asking.json("/server_info"))
    return Facts(
        reading=page.reading,
        context_tokens=context,
        seats=seats,
        median_prompt_tokens=page.median(b"prompt"),
        median_output_tokens=page.median(b"generation"),
    )


@dataclass(frozen=True, slots=True)
class _Page:
    text: bytes
    reading: Reading

    def median(self, what: bytes) -> int | None:
        """Of the histogram of prompts or generations; None where nothing was counted."""
        name = _HISTOGRAMS.get(self.reading.engine)
        if name is None:
            return None
        found = samples(self.text, [name % what])
        return median(found.get(name % what, []))


def median(buckets: list[Sample]) -> int | None:
    """The median of a histogram, of all its engines together; None of an empty one.

    Within a bucket as if it were evenly filled, as Prometheus's ``histogram_quantile`` has it.
    """
    counts: dict[float, float] = {}
    for bucket in buckets:
        try:
            bound = float(bucket.labels.get(b"le", b""))
        except ValueError:
            continue
        if bound > MAX_POOL_TOKENS:
            bound = float("inf")
        if bound > 0:  # which what is no number is not
            counts[bound] = min(counts.get(bound, 0.0) + bucket.value, _MAX_COUNT)
    half = max(counts.values(), default=0.0) / 2
    if half <= 0:
        return None
    below, lower = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= half:
            share = 0.0 if bound == float("inf") else (half - below) / (count - below)
            return round(lower + (bound - lower) * share) if share else round(lower)
        below, lower = count, bound
    return None


@dataclass(frozen=True, slots=True)
class _Asking:
    transport: httpx.AsyncBaseTransport
    target: Target
    api_key: bytes | None

    async def page(self) -> tuple[_Page | None, str]:
        """Its metrics, or why there are none.

        Raises:
            CannotTell: Nobody is there.
        """
        status, text = await self._get("/metrics")
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            return None, "it wants a key (PROXY_UPSTREAM_API_KEY)"
        if status != _OK:
            return None, _NO_PAGE if status == _NOT_FOUND else f"its metrics page answers {status}"
        try:
            return _Page(text, read(text)), ""
        except PageRefused as refused:
            return None, _REFUSED_PAGES[refused.reason]

    async def json(self, path: str) -> dict[str, Any]:
        """An object; an empty one where there is none."""
        status, text = await self._get(path)
        return _object(text) if status == _OK else {}

    async def is_an_engine(self) -> bool:
        """Whether it answers as one, wherever it tells its figures."""
        status, text = await self._get("/v1/models")
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            return True
        if status == _OK and isinstance(_object(text).get("data"), list):
            return True
        status, text = await self._get("/health")
        # vLLM and SGLang say nothing more, and llama.cpp an object.
        return status == _UNAVAILABLE or (status == _OK and (not text or bool(_object(text))))

    async def _get(self, path: str) -> tuple[int, bytes]:
        key = [] if self.api_key is None else [(b"authorization", b"Bearer " + self.api_key)]
        request = httpx.Request(
            "GET",
            f"{self.target.url}{path}",
            headers=[(b"accept-encoding", b"identity"), *key],
            extensions={"timeout": {"connect": _SECONDS}},
        )
        try:
            with anyio.fail_after(_SECONDS):
                response = await self.transport.handle_async_request(request)
                try:
                    return response.status_code, await _bounded(response)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.TimeoutException) as exc:
            raise CannotTell(f"it did not answer within {_SECONDS:.0f} s") from exc
        except httpx.ConnectError as exc:
            raise CannotTell("nobody accepts connections there; is it still starting?") from exc
        except httpx.TransportError as exc:
            raise CannotTell("it broke off, or does not speak HTTP") from exc


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def _bounded(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in cast("httpx.AsyncByteStream", response.stream):
        body += chunk
        if len(body) > MAX_PAGE_BYTES:
            break
    return bytes(body)


def _context(models: Mapping[str, Any]) -> int | None:
    """The longest of its models': adapters have what their model has."""
    listed = models.get("data")
    found = []
    for model in listed if isinstance(listed, list) else []:
        if isinstance(model, dict):
            meta = model.get("meta")
            found.append(_whole(model.get("max_model_len")))
            found.append(_whole(meta.get("n_ctx")) if isinstance(meta, dict) else None)
    return max((each for each in found if each is not None), default=None)


def _sglang_seats(info: Mapping[str, Any]) -> int | None:
    """What it runs at once, over all its ranks."""
    ranks = info.get("internal_states")
    told = [
        _whole(rank.get("effective_max_running_requests_per_dp"))
        for rank in (ranks if isinstance(ranks, list) else [])
        if isinstance(rank, dict)
    ]
    known = [each for each in told if each is not None]
    return sum(known) if known else _whole(info.get("max_running_requests"))


def _whole(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None
