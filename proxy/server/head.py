"""What the head of a request may be, decided from its parts alone.

httptools (llhttp in its strict mode) already refuses broken syntax: bare LF, NUL and other control
characters, folded fields, space before a colon, a Content-Length that is no number, repeated or
beside Transfer-Encoding. Here is what it lets through and what two servers in a row could read
differently. Its own tests are the contract's: every row there states who is relied upon.
"""

import re

from proxy.errors import HeadTooLarge, InvalidHttp, RawHeaders, TargetTooLong
from proxy.server.limits import ProtocolLimits

_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_PROTOCOL = b" HTTP/"
_VERSION_BYTES = len("1.1")

# RFC 9110 §7.2: uri-host [":" port]. Anything else must be answered 400 (RFC 9112 §3.2).
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~!$&'()*+;=%-]*)(?::[0-9]*)?")

_JUDGED = frozenset({b"host", b"transfer-encoding", b"content-length", b"expect"})


class HeadMeter:
    """Counts the bytes of one head exactly, wherever the packets were cut.

    The parser cannot: it drops the white space around values, and a field that never ends gives no
    event at all.
    """

    __slots__ = ("_line", "_tail", "is_http", "size")

    def __init__(self) -> None:
        self.size = 0
        self.is_http = True  # as far as its first line tells
        self._tail = b""
        self._line: bytes | None = b""  # the end of the first line, until that is over

    def feed(self, data: bytes) -> int:
        """Adds what of ``data`` lies before the end of the empty line that ends the head.

        Returns:
            How much that is; 0 where the head does not end here.
        """
        if self._line is not None:
            self._feed_line(self._line + data)
        # The four bytes of the end may lie across two packets, or across more.
        seam = self._tail + data[: len(_END) - 1]
        end = end_of(seam)
        if end:
            end -= len(self._tail)
        else:
            end = end_of(data)
        if end:
            self.size += end
            return end
        self.size += len(data)
        # As much as can be the beginning of an end.
        self._tail = (data if len(data) >= len(_END) else seam)[1 - len(_END) :]
        return 0

    def _feed_line(self, line: bytes) -> None:
        if _LINE_END in line:
            self.is_http = is_http(line)
            self._line = None
        else:
            self._line = line[-len(_PROTOCOL) - _VERSION_BYTES - len(_LINE_END) :]


def end_of(data: bytes) -> int:
    """Where the head in these bytes is over; 0 where it is not."""
    at = data.find(_END)
    return at + len(_END) if at >= 0 else 0


def is_http(data: bytes) -> bool:
    """Whether a request says that it is HTTP; also where its first line is not over yet.

    The parser takes ``POST / RTSP/1.1`` for HTTP/1.1, and tells nobody.
    """
    end = data.find(_LINE_END) - _VERSION_BYTES
    return end < 0 or data[end - len(_PROTOCOL) : end] == _PROTOCOL


def other_protocol() -> InvalidHttp:
    """The refusal of a request that says that it is something else."""
    return InvalidHttp(
        "This server speaks HTTP; the first line of this request names another protocol."
    )


def check_target(target: bytes, limits: ProtocolLimits) -> None:
    """Refuses a request target, or the part of it that has come so far, that is not served.

    Raises:
        TargetTooLong: It is over the limit.
        InvalidHttp: It is not in origin-form, or has a fragment.
    """
    if len(target) > limits.max_target_bytes:
        raise TargetTooLong(
            f"The path and query of this request are longer than {limits.max_target_bytes} bytes, "
            "the most that this server reads."
        )
    # absolute-form names a host beside the Host field, authority-form asks for a tunnel; there is
    # one name for each thing here, and it is a path.
    if target[:1] != b"/":
        raise InvalidHttp(
            "The request target must be a path that begins with '/' (origin-form, "
            "RFC 9112 §3.2.1). This server is not a forward proxy and does not speak HTTP/2."
        )
    # A fragment is never sent (RFC 9110 §4.2.5). Some parsers cut the path there, some do not.
    if b"#" in target:
        raise InvalidHttp("The request target has a '#'. A fragment is never part of a request.")


def read(
    method: bytes, version: str, raw: RawHeaders
) -> tuple[list[tuple[bytes, bytes]], bool, bool]:
    """The fields as ASGI has them; whether the body comes in chunks, and whether a 100 is awaited.

    One pass over them; only those that decide about the meaning of the message are looked at again.

    Args:
        method: As sent.
        version: ``1.1``, as the parser names it.
        raw: Names in any case; values may have white space behind them.

    Raises:
        InvalidHttp: As ``check_head``.
    """
    fields: list[tuple[bytes, bytes]] = []
    judged: list[tuple[bytes, bytes]] = []
    for raw_name, value in raw:
        name = raw_name.lower()
        # llhttp leaves white space behind a value (RFC 9112 §5.1). Transfer-Encoding keeps it: what
        # we are asked to overlook there, someone else may not.
        field = (name, value if name == b"transfer-encoding" else value.rstrip(b" \t"))
        fields.append(field)
        if name in _JUDGED:
            judged.append(field)
    check_head(method, version, judged)
    chunked = any(name == b"transfer-encoding" for name, _ in judged)
    # RFC 9110 §10.1.1: an expectation in HTTP/1.0 is ignored.
    return fields, chunked, version != "1.0" and _expects_continue(judged)


def _expects_continue(headers: RawHeaders) -> bool:
    """Whether the client waits for a 100 before it sends its body (RFC 9110 §10.1.1)."""
    for name, value in headers:  # noqa: SIM110 - twice as fast as any()
        if name == b"expect" and value.lower() == b"100-continue":
            return True
    return False


def check_head(method: bytes, version: str, headers: RawHeaders) -> None:
    """Refuses a head that two servers could read as two different messages.

    Args:
        method: As sent.
        version: ``1.1``, as the parser names it.
        headers: Those of them that it can be told by; names lowercase, the value of
            Transfer-Encoding with its trailing white space.

    Raises:
        InvalidHttp: Version, method, Host or framing.
    """
    if version not in ("1.0", "1.1"):
        raise InvalidHttp(f"This server speaks HTTP/1.1 and HTTP/1.0, not version {version}.")
    if method == b"CONNECT":
        raise InvalidHttp("CONNECT is not served: this server is not a forward proxy.")
    _check_host([value for name, value in headers if name == b"host"])
    _check_framing(version, headers)


def too_many_fields(limits: ProtocolLimits) -> HeadTooLarge:
    """The refusal of one field too many, be it in the head or in the trailer section."""
    return HeadTooLarge(
        f"This request has more than {limits.max_head_fields} header and trailer fields, "
        "the most that this server reads."
    )


def head_too_large(limits: ProtocolLimits) -> HeadTooLarge:
    """The refusal of a head whose bytes are over the limit."""
    return HeadTooLarge(
        f"The head of this request (request line and header fields) is larger than "
        f"{limits.max_head_bytes} bytes, the most that this server reads."
    )


def _check_host(values: list[bytes]) -> None:
    # RFC 9112 §3.2: none or several must be answered 400. The admin listener decides by this
    # field, and a proxy in front may have routed by the other one.
    match values:
        case [value] if _HOST.fullmatch(value):
            return
        case [_]:
            raise InvalidHttp("The Host field is not the name of a host, with or without a port.")
        case found:
            raise InvalidHttp(
                f"A request must have exactly one Host field; this one has {len(found)}."
            )


def _check_framing(version: str, headers: RawHeaders) -> None:
    encodings = [value for name, value in headers if name == b"transfer-encoding"]
    if not encodings:
        return
    if version != "1.1":
        # RFC 9112 §6.1: the framing of such a message is faulty; whoever passed it on may have
        # ended it elsewhere.
        raise InvalidHttp("Transfer-Encoding is not served in HTTP/1.0.")
    # Request smuggling lives here. llhttp takes `gzip, chunked`, and `chunked` with a space
    # behind it, which others take for an unknown coding.
    if [value.lower() for value in encodings] != [b"chunked"]:
        raise InvalidHttp(
            "Transfer-Encoding must be the one word 'chunked', given once, or be left out."
        )
    if any(name == b"content-length" for name, _ in headers):
        raise InvalidHttp("A request may have Transfer-Encoding or Content-Length, never both.")
