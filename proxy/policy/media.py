"""Images and sounds: inline payloads of known types, and nothing that the server would fetch or load.

A part is media if its type or any of its keys says so, because vLLM honours parts without a type.
The declared type of a ``data:`` URL proves nothing (image libraries look at the bytes, and an EPS
labelled as PNG ran Ghostscript, CVE-2026-115915), so the first bytes are looked at here too.

Its payload is free of the prompt cap: it is not text. The body cap bounds it.
"""

import binascii
from collections.abc import Mapping
from typing import Any, Literal

from proxy.errors import MediaRefused

Family = Literal["image", "audio", "video"]

# Keys that make a part a media part, and what they hold.
_FAMILY_OF_KEY: Mapping[str, Family] = {
    "image_url": "image",
    "audio_url": "audio",
    "video_url": "video",
    "input_audio": "audio",
    "source": "image",
}
_OTHER_KEYS = frozenset(
    {"uuid", "file", "file_id", "file_url", "file_data", "image", "audio", "video", "image_pil"}
)
_TYPES: Mapping[str, str] = {
    "image_url": "image_url",
    "input_image": "image_url",
    "audio_url": "audio_url",
    "video_url": "video_url",
    "input_audio": "input_audio",
    "image": "source",
}
_OTHER_TYPES = frozenset(
    {"image_pil", "audio", "video", "file", "input_file", "document", "container_upload"}
)
_EMBEDS = "_embeds"

_SUBTYPES: Mapping[Family, frozenset[str]] = {
    "image": frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"}),
    "audio": frozenset(
        {
            "audio/wav",
            "audio/x-wav",
            "audio/wave",
            "audio/mp3",
            "audio/mpeg",
            "audio/ogg",
            "audio/flac",
        }
    ),
    "video": frozenset({"video/mp4", "video/webm"}),
}
# An MPEG audio frame begins with eleven set bits and a layer other than 00 (ISO/IEC 11172-3).
_MPEG_SYNC, _MPEG_LAYER = 0xFFE0, 0x0006
_AUDIO_FORMATS = frozenset({"wav", "mp3", "ogg", "flac"})


def is_media(part: Mapping[str, Any]) -> bool:
    """Whether an engine may take this content part for media, with or without a type."""
    kind = part.get("type")
    if type(kind) is str and (kind in _TYPES or kind in _OTHER_TYPES or kind.endswith(_EMBEDS)):
        return True
    return any(key in _FAMILY_OF_KEY or key in _OTHER_KEYS or key.endswith(_EMBEDS) for key in part)


def payload_key(part: Mapping[str, Any], where: str, *, video: bool) -> str:
    """The key of a media part that holds its payload, once that is known to be harmless.

    Args:
        part: A content part for which `is_media` holds.
        where: Its path, for the error.
        video: Whether the operator allowed video.

    Raises:
        MediaRefused: Any form but one inline payload of a known type.
    """
    keys = [key for key in part if key in _FAMILY_OF_KEY or key in _OTHER_KEYS]
    kind = part.get("type")
    if len(keys) != 1 or keys[0] not in _FAMILY_OF_KEY:
        raise _refused(
            where, "it must have exactly one of image_url, audio_url, input_audio, source"
        )
    key = keys[0]
    if "type" in part and (type(kind) is not str or _TYPES.get(kind) != key):
        raise _refused(where, f"its type and its key {key} do not belong together")
    family = _FAMILY_OF_KEY[key]
    if family == "video" and not video:
        raise _refused(where, "video is off (PROXY_ALLOW_FIELDS=video_url allows it)")
    value = part[key]
    if key == "input_audio":
        _check_input_audio(value, f"{where}.{key}")
    elif key == "source":
        _check_source(value, f"{where}.{key}")
    else:
        url = value.get("url") if type(value) is dict else value
        _check_data_url(url, family, f"{where}.{key}")
    return key


def without_payload(value: object) -> object:
    """What is left to count of a payload's value: everything but the payload itself."""
    if type(value) is dict:
        return {key: child for key, child in value.items() if key not in ("url", "data")} or None
    return None


def _check_data_url(url: object, family: Family, where: str) -> None:
    if type(url) is not str:
        raise _refused(where, "it must be a data: URL")
    comma = url.find(",", 0, 64)
    head = url[:comma] if comma >= 0 else ""
    media_type = head.removeprefix("data:").removesuffix(";base64")
    if head != f"data:{media_type};base64" or media_type not in _SUBTYPES[family]:
        known = ", ".join(sorted(_SUBTYPES[family]))
        raise _refused(where, f"only data: URLs in base64 of {known} are accepted")
    _check_payload(url[comma + 1 :], family, where)


def _check_input_audio(value: object, where: str) -> None:
    if type(value) is not dict or not _one_of(value.get("format"), _AUDIO_FORMATS):
        raise _refused(where, "it must have data in base64 and a format of wav, mp3, ogg or flac")
    _check_payload(value.get("data"), "audio", f"{where}.data")


def _check_source(value: object, where: str) -> None:
    if (
        type(value) is not dict
        or value.get("type") != "base64"
        or not _one_of(value.get("media_type"), _SUBTYPES["image"])
    ):
        raise _refused(where, "only sources of type base64 with an image media_type are accepted")
    _check_payload(value.get("data"), "image", f"{where}.data")


def _one_of(value: object, words: frozenset[str]) -> bool:
    return type(value) is str and value in words  # what is no string may not be hashable


def _check_payload(data: object, family: Family, where: str) -> None:
    if type(data) is not str:
        raise _refused(where, "it must be a string in base64")
    try:
        content = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raise _refused(where, "it is not valid base64") from None
    if not _looks_like(content[:16], family):
        raise _refused(where, f"its first bytes are not those of an accepted {family} format")


def _looks_like(head: bytes, family: Family) -> bool:
    """Whether a payload begins like one of the family's formats. Source: their specifications."""
    if family == "image":
        return head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")) or (
            head.startswith(b"RIFF") and head[8:12] == b"WEBP"
        )
    if family == "audio":
        sync = int.from_bytes(head[:2])
        frame = sync & _MPEG_SYNC == _MPEG_SYNC and sync & _MPEG_LAYER != 0
        wave = head.startswith(b"RIFF") and head[8:12] == b"WAVE"
        return frame or wave or head.startswith((b"ID3", b"OggS", b"fLaC"))
    return head[4:8] == b"ftyp" or head.startswith(b"\x1aE\xdf\xa3")


def _refused(where: str, reason: str) -> MediaRefused:
    return MediaRefused(f"The media part {where} is not accepted: {reason}.", param=where)
