"""Images and sounds: inline payloads of known types, and nothing else."""

import base64
import json
from typing import Any

import pytest

from proxy.endpoints import BodyKind
from proxy.errors import FieldRefused, MediaRefused
from proxy.policy import Limits, Policy, Terms, Verdict

HEADS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/webp": b"RIFF\x00\x00\x00\x00WEBP",
    "image/gif": b"GIF89a",
    "audio/wav": b"RIFF\x00\x00\x00\x00WAVE",
    "audio/mp3": b"ID3\x04",
    "audio/mpeg": b"\xff\xfb\x90\x00",
    "audio/ogg": b"OggS",
    "audio/flac": b"fLaC",
    "video/mp4": b"\x00\x00\x00\x18ftypmp42",
}


def encoded(media_type: str, size: int = 64) -> str:
    """A payload that begins as its type does."""
    return base64.b64encode(HEADS[media_type].ljust(size, b"\0")).decode()


def data_url(media_type: str, size: int = 64) -> str:
    """The same as a data URL."""
    return f"data:{media_type};base64,{encoded(media_type, size)}"


PNG = data_url("image/png")
IMAGE = {"type": "image_url", "image_url": {"url": PNG}}
TEXT = {"type": "text", "text": "describe"}


def check(parts: object, kind: BodyKind = BodyKind.CHAT, **limits: Any) -> Verdict:
    """The policy's verdict on a user's message of these parts."""
    name = "input" if kind is BodyKind.RESPONSES else "messages"
    body = json.dumps({name: [{"role": "user", "content": parts}]}).encode()
    return Policy(Limits(**limits)).check(kind, body, Terms())


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        *(
            pytest.param(
                BodyKind.CHAT,
                {"type": "image_url", "image_url": {"url": data_url(kind), "detail": "low"}},
                id=kind,
            )
            for kind in HEADS
            if kind.startswith("image")
        ),
        *(
            pytest.param(
                BodyKind.CHAT,
                {"type": "audio_url", "audio_url": {"url": data_url(kind)}},
                id=kind,
            )
            for kind in HEADS
            if kind.startswith("audio")
        ),
        pytest.param(
            BodyKind.CHAT, {"type": "image_url", "image_url": PNG}, id="a bare URL string"
        ),
        pytest.param(BodyKind.CHAT, {"image_url": {"url": PNG}}, id="a part without a type"),
        pytest.param(
            BodyKind.CHAT,
            {
                "type": "image_url",
                "image_url": {"url": data_url("image/jpeg").replace("jpeg", "jpg")},
            },
            id="the common misspelling of jpeg",
        ),
        pytest.param(
            BodyKind.CHAT,
            {
                "type": "image_url",
                "image_url": {"url": data_url("image/jpeg").replace("jpeg", "png")},
            },
            id="a JPEG labelled as PNG",
        ),
        pytest.param(
            BodyKind.CHAT,
            {"type": "input_audio", "input_audio": {"data": encoded("audio/wav"), "format": "wav"}},
            id="input_audio",
        ),
        pytest.param(
            BodyKind.RESPONSES, {"type": "input_image", "image_url": PNG}, id="input_image"
        ),
        pytest.param(
            BodyKind.MESSAGES,
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": encoded("image/png"),
                },
            },
            id="an Anthropic source",
        ),
        pytest.param(
            BodyKind.MESSAGES,
            {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]},
            id="an image in a tool's result",
        ),
    ],
)
def test_inline_payloads_pass(kind: BodyKind, part: dict[str, Any]) -> None:
    """They count as media, and hardly as prompt."""
    cost = check([TEXT, part], kind).cost
    assert cost.media_parts == 1
    assert cost.prompt_chars < 100


def test_a_large_image_is_free_of_the_prompt_cap() -> None:
    """200 KB of base64 are not 200,000 characters of prompt."""
    part = {"type": "image_url", "image_url": {"url": data_url("image/png", 150_000)}}
    assert check([TEXT, part]).cost.prompt_chars == len("describe")


def image(url: object) -> dict[str, Any]:
    """An image part with this URL."""
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(image("http://10.0.0.5/x"), id="http"),
        pytest.param(image("https://example.com/x.png"), id="https"),
        pytest.param(image("file:///etc/passwd"), id="a file URL"),
        pytest.param(image("HTTP://10.0.0.5/x"), id="http in capitals"),
        pytest.param(image(" " + PNG), id="a leading space"),
        pytest.param(image("DATA" + PNG[4:]), id="DATA: in capitals"),
        pytest.param(image(PNG.replace("png", "svg+xml")), id="another image type"),
        pytest.param(image(PNG.replace("image/png", "text/html")), id="another type"),
        pytest.param(image(PNG.replace(";base64", "")), id="no base64"),
        pytest.param(image(PNG.replace(";base64", ";charset=x;base64")), id="a parameter"),
        pytest.param(image("data:image/png;base64,"), id="an empty payload"),
        pytest.param(image("data:image/png;base64,!!!!"), id="characters that are no base64"),
        pytest.param(image(PNG + "\n"), id="a line break behind the payload"),
        pytest.param(image(PNG + "é"), id="a character beyond ASCII"),
        pytest.param(image("data:image/png;base64," + base64.b64encode(b"%!PS-Adobe EPSF" * 4).decode()), id="PostScript labelled as PNG"),
        pytest.param(image(data_url("audio/wav")), id="a sound as an image"),
        pytest.param(image("data:image/png;base64," + encoded("audio/wav")), id="a sound labelled as PNG"),
        pytest.param(image(5), id="a number"),
        pytest.param(image(None), id="null"),
        pytest.param({"type": "image_url"}, id="no payload"),
        pytest.param({"type": "image_url", "image_url": None, "uuid": "u"}, id="a cached image by uuid"),
        pytest.param({**IMAGE, "uuid": "u"}, id="a uuid beside the payload"),
        pytest.param({"type": "text", "text": "x", "uuid": "u"}, id="a uuid in a text part"),
        pytest.param({"type": "text", "text": "x", "image_url": {"url": "http://10.0.0.5/"}}, id="an image in a text part"),
        pytest.param({"image_url": {"url": "http://10.0.0.5/"}}, id="an image without a type"),
        pytest.param({**IMAGE, "audio_url": {"url": "http://10.0.0.5/"}}, id="two media keys"),
        pytest.param({"type": "audio_url", "image_url": {"url": PNG}}, id="a type that is not the key's"),
        pytest.param({"type": ["image_url"], "image_url": {"url": PNG}}, id="a type that is a list"),
        pytest.param({"type": "image_url", "image_url": [PNG]}, id="a list of URLs"),
        pytest.param({"type": "input_audio", "input_audio": None}, id="no audio"),
        pytest.param({"type": "input_audio", "input_audio": {"data": encoded("audio/wav"), "format": "pcm"}}, id="an unknown audio format"),
        pytest.param({"type": "input_audio", "input_audio": {"data": encoded("audio/wav"), "format": ["wav"]}}, id="an audio format that is a list"),
        pytest.param({"type": "input_audio", "input_audio": {"data": "http://10.0.0.5/", "format": "wav"}}, id="a URL as audio data"),
        pytest.param({"type": "image", "source": {"type": "url", "url": "http://10.0.0.5/"}}, id="an Anthropic URL source"),
        pytest.param({"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": encoded("image/png")}}, id="an Anthropic source of another type"),
        pytest.param({"type": "image", "source": {"type": "base64", "media_type": {}, "data": ""}}, id="a media type that is an object"),
        pytest.param({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": 5}}, id="data that is no string"),
        pytest.param({"type": "image", "source": "x"}, id="a source that is a string"),
        pytest.param({"type": "document", "source": {"type": "text", "data": "x"}}, id="a document"),
        pytest.param({"type": "file", "file": {"file_id": "f"}}, id="a file"),
        pytest.param({"type": "input_file", "file_url": "http://10.0.0.5/"}, id="a file by URL"),
        pytest.param({"type": "image_pil", "image_pil": "x"}, id="image_pil"),
        pytest.param({"type": "video_url", "video_url": {"url": data_url("video/mp4")}}, id="video, by default"),
        pytest.param({"type": "tool_result", "content": [image("http://10.0.0.5/")]}, id="a URL in a tool's result"),
    ],
)  # fmt: skip
def test_everything_else_is_refused(part: dict[str, Any]) -> None:
    """Whatever the server would fetch, load, look up or hand to another parser."""
    with pytest.raises(MediaRefused) as caught:
        check([TEXT, part])
    assert caught.value.param is not None
    assert caught.value.param.startswith("messages[0].content[1]")
    assert "10.0.0.5" not in caught.value.message


def test_a_part_that_is_the_content_itself_is_looked_at() -> None:
    """Not in a list, and media all the same."""
    with pytest.raises(MediaRefused):
        check(image("http://10.0.0.5/"))


@pytest.mark.parametrize("where", ["reasoning", "output"])
def test_parts_outside_of_content_are_looked_at(where: str) -> None:
    """An engine that reads parts there fetches from there."""
    body = json.dumps({"messages": [{"role": "user", where: [image("http://10.0.0.5/")]}]})
    with pytest.raises(MediaRefused):
        Policy(Limits()).check(BodyKind.CHAT, body.encode(), Terms())


@pytest.mark.parametrize("name", ["image_embeds", "audio_embeds", "prompt_embeds", "new_embeds"])
def test_embeddings_in_parts_are_refused_by_type_and_by_key(name: str) -> None:
    """Unless the operator allowed them by name."""
    for part in ({"type": name, name: "AAAA"}, {name: "AAAA"}, {"type": name, "data": "AAAA"}):
        with pytest.raises(FieldRefused, match=name):
            check([part])
        assert check([part], allow_fields=frozenset({name})).cost.media_parts == 1


def test_video_can_be_allowed() -> None:
    """Inline, as for images."""
    part = {"type": "video_url", "video_url": {"url": data_url("video/mp4")}}
    allowed = frozenset({"video_url"})
    assert check([part], allow_fields=allowed).cost.media_parts == 1
    with pytest.raises(MediaRefused):
        check([{"type": "video_url", "video_url": {"url": "http://h/x.mp4"}}], allow_fields=allowed)


def test_eight_parts_pass_and_nine_do_not() -> None:
    """However they are spread."""
    assert check([IMAGE] * 8).cost.media_parts == 8
    with pytest.raises(MediaRefused, match=r"9 media parts.*8 \(PROXY_MAX_MEDIA_PARTS\)"):
        check([IMAGE] * 9)
    with pytest.raises(MediaRefused, match="1 media parts"):
        check([IMAGE], max_media_parts=0)
