"""Images and sounds by URL: a server that fetches them does so from inside of the network."""

import asyncio
import json
from collections.abc import Callable, Mapping

import pytest

from tests.harness import upstream as upstreams
from tests.harness.running import Launch

PARTS: Mapping[str, Callable[[str], object]] = {
    "image_url": lambda url: {"type": "image_url", "image_url": {"url": url}},
    "input_image": lambda url: {"type": "input_image", "image_url": url},
    "audio_url": lambda url: {"type": "audio_url", "audio_url": {"url": url}},
    "video_url": lambda url: {"type": "video_url", "video_url": {"url": url}},
    "source": lambda url: {"type": "image", "source": {"type": "url", "url": url}},
    "file_url": lambda url: {"type": "input_file", "file_url": url},
}
"""Each way to say it, of three dialects."""


def chat(part: object) -> bytes:
    """One chat with one part beside its text."""
    content = [{"type": "text", "text": "What is this?"}, part]
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()


@pytest.mark.case("FW-12")
@pytest.mark.parametrize("kind", PARTS)
async def test_the_proxy_fetches_nothing(proxy: Launch, kind: str) -> None:
    """A URL in whatever part is refused; who is named in it hears nothing of that, nor the engine."""
    running = await proxy()
    async with upstreams.serve() as named:
        answer = await running.chat(chat(PARTS[kind](f"{named.url}/secret.png")))
        await running.assert_refused(answer, 400, "media_refused")
        # Whoever wanted to connect meanwhile is here first: the listener takes them in turn.
        _, writer = await asyncio.open_connection("127.0.0.1", named.port)
        await named.connection(0)
        writer.close()
        assert len(named.connections) == 1
    assert running.upstream.connections == []


@pytest.mark.case("FW-12")
@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://10.0.0.5/x", id="a machine of the house"),
        pytest.param("http://169.254.169.254/latest/", id="the metadata of a cloud"),
        pytest.param("https://example.com/redirects-to-10.0.0.5", id="one that may lead elsewhere"),
        pytest.param("file:///etc/passwd", id="a file"),
        pytest.param("ftp://10.0.0.5/x", id="another scheme"),
    ],
)
async def test_no_url_is_passed_on(proxy: Launch, url: str) -> None:
    """Wherever it leads: what the engine would fetch, it is not told."""
    running = await proxy()
    await running.assert_refused(
        await running.chat(chat(PARTS["image_url"](url))), 400, "media_refused"
    )


@pytest.mark.case("FW-14")
@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://[::ffff:10.0.0.5]/", id="IPv4 as IPv6"),
        pytest.param("http://0x0a000005/", id="hexadecimal"),
        pytest.param("http://167772165/", id="one number"),
        pytest.param("http://012.0.0.5/", id="octal"),
        pytest.param(r"http://good\@10.0.0.5/", id="two hosts"),
        pytest.param("HTTP://10.0.0.5/", id="capitals"),
        pytest.param(" http://10.0.0.5/", id="a space in front"),
        pytest.param("//10.0.0.5/x", id="no scheme"),
        pytest.param("data:,http://10.0.0.5/", id="in a data URL"),
    ],
)
async def test_a_spelling_decides_nothing(proxy: Launch, url: str) -> None:
    """There is no list of hosts to get past: what is not inline base64 is refused."""
    running = await proxy()
    await running.assert_refused(
        await running.chat(chat(PARTS["image_url"](url))), 400, "media_refused"
    )
