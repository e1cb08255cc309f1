"""curl through the whole proxy: what people try first, and what half of all scripts are."""

import asyncio
import base64
import json
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.conftest import Client
from tests.harness import programs
from tests.harness import upstream as upstreams
from tests.harness.figures import Figures
from tests.harness.hangup import stops_the_model
from tests.harness.programs import Ended
from tests.harness.running import CHAT, CHAT_BODY, KEY, Launch, Running

pytestmark = pytest.mark.clients

MB = 1_000_000
STREAMED = CHAT_BODY[:-1] + b',"stream":true}'
FIRST = upstreams.completion_chunk({"content": "a"})
AS_JSON = ["-H", "Content-Type: application/json"]
WITH_KEY = ["-H", f"Authorization: Bearer {KEY}"]
CHATTING = [*WITH_KEY, *AS_JSON, "-d", CHAT_BODY.decode()]


def version() -> list[str]:
    """What curl says about itself."""
    curl = shutil.which("curl")
    if curl is None:
        return []
    said = subprocess.run([curl, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return said.stdout.split()


needs_http_2 = pytest.mark.skipif("HTTP2" not in version(), reason="this curl has no HTTP/2")


@pytest.fixture(scope="module")
def tried() -> Client:
    """Whom this module tries."""
    assert version(), "needs curl; on Debian or Ubuntu: apt-get install curl"
    return Client("curl", version()[1])


def command(running: Running, *options: str | Path, path: str = CHAT) -> list[str]:
    """A call of curl that shows what came, with nothing read from anybody's settings."""
    url = f"http://127.0.0.1:{running.port}{path}"
    return ["curl", "--disable", "--silent", "--show-error", *map(str, options), url]


async def curl(running: Running, *options: str | Path, path: str = CHAT) -> Ended:
    """Runs curl to its end; what it sends and gets is in its errors, as ``-v`` has it."""
    return await programs.run(*command(running, "-v", *options, path=path))


def heads(ended: Ended) -> list[str]:
    """The first lines of the answers, interim ones too."""
    return re.findall(r"^< (HTTP/.*?)\r?$", ended.errors.decode(), re.MULTILINE)


def statuses(ended: Ended) -> list[int]:
    """The statuses of the answers, interim ones too."""
    return [int(line.split()[1]) for line in heads(ended)]


def code(ended: Ended) -> str:
    """The code of the error that it has read whole."""
    assert ended.status == 0, ended.errors.decode()
    return str(json.loads(ended.output)["error"]["code"])


def body_of(size: int, folder: Path) -> Path:
    """A file with JSON of about this size."""
    path = folder / "body.json"
    path.write_text(json.dumps({"model": "m", "messages": [], "pad": "x" * size}))
    return path


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="as it is"),
        pytest.param(["--compressed"], id="--compressed"),
        pytest.param(["--http1.0"], id="HTTP/1.0"),
        pytest.param(["--http1.1"], id="HTTP/1.1"),
        pytest.param(["-H", "Expect: 100-continue"], id="Expect"),
        pytest.param(["-H", "Expect:"], id="no Expect"),
        pytest.param(["-H", "Connection: close"], id="Connection: close"),
        pytest.param(["-H", "TE: trailers"], id="TE"),
        pytest.param(["-H", "Accept: text/event-stream"], id="an Accept that does not fit"),
        pytest.param(
            ["-H", "Content-Type: APPLICATION/JSON; charset=UTF-8"], id="another spelling"
        ),
    ],
)
async def test_a_chat(front: Launch, options: list[str], model: str) -> None:
    """However it is asked for."""
    running = await front()
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]})
    # The last of two fields of one name would count for curl, so the type is given once.
    kind = [] if any("Content-Type" in option for option in options) else AS_JSON
    ended = await curl(running, *options, *WITH_KEY, *kind, "-d", body)
    assert statuses(ended)[-1] == 200
    assert ended.json()["choices"][0]["message"]["content"]


async def test_nothing_is_compressed(proxy: Launch) -> None:
    """What curl would take is not offered to the engine, and the answer is as it came."""
    running = await proxy()
    ended = await curl(running, "--compressed", *CHATTING)
    assert "Accept-Encoding: " in ended.errors.decode()
    assert running.upstream.requests[0].header(b"accept-encoding") == b"identity"
    assert ended.output == upstreams.COMPLETION


async def test_http_1_0_gets_no_chunks(proxy: Launch) -> None:
    """A stream ends with the connection there, and curl has every byte of it."""
    running = await proxy()
    ended = await curl(running, "--http1.0", *WITH_KEY, *AS_JSON, "-d", STREAMED.decode())
    assert statuses(ended) == [200]
    assert "chunked" not in ended.errors.decode()
    assert ended.output.endswith(upstreams.DONE)
    assert ended.status == 0


async def test_a_stream_that_dies_is_seen_to(proxy: Launch) -> None:
    """The exit status says that the transfer is not complete."""
    running = await proxy()
    running.upstream.reply = [upstreams.SSE_HEAD, upstreams.event(FIRST), upstreams.End.FIN]
    ended = await curl(running, "-N", *WITH_KEY, *AS_JSON, "-d", STREAMED.decode())
    assert ended.status in {18, 56}  # "partial file", "failure in receiving"
    assert ended.output == upstreams.sse(FIRST)


async def test_a_stream_is_live(proxy: Launch) -> None:
    """With -N the first piece is printed before the model has said the second."""
    running = await proxy()
    gate = asyncio.Event()
    done = [upstreams.chunk(upstreams.DONE), upstreams.LAST_CHUNK]
    running.upstream.reply = [upstreams.SSE_HEAD, upstreams.event(FIRST), gate, *done]
    asking = command(running, "-N", *WITH_KEY, *AS_JSON, "-d", STREAMED.decode())
    async with programs.started(*asking) as process:
        assert process.stdout is not None
        first = upstreams.sse(FIRST)
        assert await asyncio.wait_for(process.stdout.readexactly(len(first)), 10) == first
        gate.set()
        assert await asyncio.wait_for(process.stdout.read(), 10) == upstreams.DONE


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    "streamed", [pytest.param(True, id="in a stream"), pytest.param(False, id="before the answer")]
)
async def test_leaving_stops_the_model(
    proxy: Launch, figures: Figures, how: signal.Signals, streamed: bool
) -> None:
    """Ctrl-C, or worse: the upstream's connection is closed within a second."""
    running = await proxy()
    begun = [upstreams.SSE_HEAD, upstreams.event(FIRST)] if streamed else []
    running.upstream.reply = [*begun, upstreams.End.SILENCE]
    body = STREAMED if streamed else CHAT_BODY
    asking = command(running, "-N", *WITH_KEY, *AS_JSON, "-d", body.decode())
    async with programs.started(*asking) as process:
        assert process.stdout is not None
        await running.upstream.request(0, within=10)
        if streamed:
            await asyncio.wait_for(process.stdout.readline(), 10)
        process.send_signal(how)
        where = "in a stream" if streamed else "before the answer"
        await stops_the_model(running, figures, f"curl, {how.name} {where}")


# Uploads

Upload = Callable[[Path], list[str | Path]]
UPLOADS = [
    pytest.param(lambda path: ["--data-binary", f"@{path}"], id="--data-binary, which asks first"),
    pytest.param(
        lambda path: ["-H", "Expect:", "--data-binary", f"@{path}"], id="--data-binary at once"
    ),
    pytest.param(
        lambda path: ["-H", "Transfer-Encoding: chunked", "-X", "POST", "-T", path],
        id="-T in chunks",
    ),
    pytest.param(
        lambda path: [
            "-H",
            "Expect:",
            "-H",
            "Transfer-Encoding: chunked",
            "-X",
            "POST",
            "-T",
            path,
        ],
        id="-T in chunks at once",
    ),
    pytest.param(
        lambda path: ["--http1.0", "--data-binary", f"@{path}"], id="--data-binary over HTTP/1.0"
    ),
]


@pytest.mark.parametrize("upload", UPLOADS)
async def test_an_upload_arrives_whole(proxy: Launch, tmp_path: Path, upload: Upload) -> None:
    """1.5 MB, however it is sent: the engine gets the bytes and their number, and no framing."""
    running = await proxy()
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(1_100_000)).decode()
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}]
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": parts}]}
    path = tmp_path / "body.json"
    path.write_text(json.dumps(body))
    ended = await curl(running, *WITH_KEY, *AS_JSON, *upload(path))
    assert statuses(ended)[-1] == 200, ended.output
    (request,) = running.upstream.requests
    assert request.body == path.read_bytes()
    assert request.header(b"content-length") == str(path.stat().st_size).encode()
    assert request.header(b"transfer-encoding") is None
    assert request.header(b"expect") is None


@pytest.mark.parametrize("upload", UPLOADS)
async def test_413_is_readable(
    proxy: Launch,
    figures: Figures,
    tmp_path: Path,
    upload: Upload,
    request: pytest.FixtureRequest,
) -> None:
    """HF-05: curl prints the reason and ends well, whatever it was doing."""
    running = await proxy()
    times = 20
    for size in (3 * MB, 50 * MB):
        path = body_of(size, tmp_path)
        seen: Counter[str] = Counter()
        for _ in range(times):
            seen[code(await curl(running, *WITH_KEY, *AS_JSON, *upload(path)))] += 1
        row = f"curl, {request.node.callspec.id}, {size // MB} MB"
        figures.add("413 read by", row, times=times, read=seen["body_too_large"])
        assert seen == {"body_too_large": times}
    assert running.upstream.requests == []


@pytest.mark.parametrize(
    ("size", "key", "wanted"),
    [
        pytest.param(1_000, KEY, [100, 200], id="a body that is welcome"),
        pytest.param(3 * MB, KEY, [413], id="a body that is too large"),
        pytest.param(1_900_000, "wrong", [403], id="a body of nobody that we know"),
    ],
)
async def test_expect(
    proxy: Launch, tmp_path: Path, size: int, key: str, wanted: list[int]
) -> None:
    """HF-04: told to go on only where it makes sense, and the engine never hears of it."""
    running = await proxy()
    given = ["-H", f"Authorization: Bearer {key}", "-H", "Expect: 100-continue", *AS_JSON]
    ended = await curl(running, *given, "--data-binary", f"@{body_of(size, tmp_path)}")
    assert statuses(ended) == wanted
    assert ended.status == 0
    assert all(got.header(b"expect") is None for got in running.upstream.requests)


# Connections


async def test_one_connection_for_many_requests(proxy: Launch) -> None:
    """Answers and refusals of every kind leave it usable."""
    running = await proxy()
    counting = ["-w", "%{stderr}connects:%{num_connects} status:%{response_code}\\n"]
    url = f"http://127.0.0.1:{running.port}"
    ended = await programs.run(
        *command(running, *CHATTING, *counting),
        *["--next", "-sS", *CHATTING, *counting, "-H", "Authorization: Bearer wrong", url + CHAT],
        *["--next", "-sS", *WITH_KEY, *counting, f"{url}/v1/models"],
        *["--next", "-sS", *WITH_KEY, *counting, f"{url}/nowhere"],
        *["--next", "-sS", *WITH_KEY, *AS_JSON, "-d", STREAMED.decode(), *counting, url + CHAT],
    )
    assert ended.status == 0
    seen = re.findall(r"connects:(\d) status:(\d+)", ended.errors.decode())
    assert [status for _, status in seen] == ["200", "401", "200", "404", "200"]
    assert [connects for connects, _ in seen] == ["1", "0", "0", "0", "0"]


@needs_http_2
async def test_an_upgrade_to_http_2_is_passed_over(proxy: Launch) -> None:
    """The answer comes in HTTP/1.1, and the engine does not hear of the wish."""
    running = await proxy()
    ended = await curl(running, "--http2", *CHATTING)
    assert "Upgrade: h2c" in ended.errors.decode()
    assert heads(ended) == ["HTTP/1.1 200 OK"]
    assert ended.output == upstreams.COMPLETION
    (request,) = running.upstream.requests
    for name in (b"upgrade", b"http2-settings", b"connection"):
        assert request.header(name) is None


@needs_http_2
async def test_http_2_unasked_is_refused(proxy: Launch) -> None:
    """Its preface is no request of ours: the connection ends, at once, and nothing is forwarded."""
    running = await proxy()
    ended = await curl(running, "--http2-prior-knowledge", "--max-time", "10", *CHATTING)
    assert ended.status not in {0, 28}  # 28: it had to give up by itself
    assert running.upstream.requests == []


# Refusals


@pytest.mark.parametrize(
    ("options", "path", "status", "why"),
    [
        pytest.param(AS_JSON, CHAT, 401, "missing_api_key", id="no key"),
        pytest.param(["-u", f"user:{KEY}"], CHAT, 401, "missing_api_key", id="a key as a password"),
        pytest.param(WITH_KEY, CHAT, 415, "unsupported_media_type", id="-d alone sends a form"),
        pytest.param(
            [*WITH_KEY, "-F", "model=m"], CHAT, 415, "unsupported_media_type", id="-F sends parts"
        ),
        pytest.param(
            [*WITH_KEY, *AS_JSON, "-H", "Content-Encoding: gzip"],
            CHAT,
            415,
            "unsupported_media_type",
            id="a compressed body",
        ),
        pytest.param(
            [*WITH_KEY, "--path-as-is"], "/v1/../metrics", 404, "not_found", id="a path with dots"
        ),
        pytest.param([*WITH_KEY, "-X", "PUT"], CHAT, 405, "method_not_allowed", id="PUT"),
    ],
)
async def test_a_refusal_is_one_call(
    proxy: Launch, options: list[str], path: str, status: int, why: str
) -> None:
    """CC-04: a script that is told to try again does not, and prints why."""
    running = await proxy()
    body = [] if "-F" in options else ["-d", CHAT_BODY.decode()]
    ended = await curl(running, "--retry", "2", *options, *body, path=path)
    assert (statuses(ended), code(ended)) == ([status], why)
    assert len(running.log.requests()) == 1
    assert running.upstream.requests == []
