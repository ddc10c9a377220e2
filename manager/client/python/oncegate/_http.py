"""HTTP/1.1 without input and output: bytes of requests, and a reader of answers. The sync and the async client share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional
from urllib.parse import urlsplit

#: Bounds an answer: a full claim or page, with its frame.
MAX_ANSWER = 32 << 20
_MAX_HEAD = 64 << 10


class ProtocolError(Exception):
    """The answer is not HTTP/1.1, or it ended too early."""


class TooMuch(Exception):
    """The answer is larger than MAX_ANSWER."""


@dataclass(frozen=True)
class Origin:
    """Where a connection leads."""

    scheme: str  # http, https or unix
    host: str  # a path for unix
    port: int = 0


@dataclass
class Request:
    """One attempt of a call."""

    origin: Origin
    data: bytes
    method: str
    first: float  # seconds until the first part of the answer
    rest: float  # seconds until each further one
    deadline: Optional[float] = None  # of the monotonic clock; it bounds all of that


@dataclass
class Response:
    """An answer."""

    status: int
    headers: dict[str, str]  # by names in lower case
    body: bytes


def origin_of(url: str) -> tuple[Origin, str]:
    """Divide a URL into its origin and its path. It raises ValueError."""
    u = urlsplit(url)
    if u.scheme not in ("http", "https") or not u.hostname or u.query or u.fragment or u.username is not None:
        raise ValueError("must be http:// or https:// with a host")
    return Origin(u.scheme, u.hostname, u.port or (443 if u.scheme == "https" else 80)), u.path.rstrip("/")


def host_header(o: Origin) -> str:
    """The value of a request's header Host."""
    if o.scheme == "unix":
        return "localhost"
    host = f"[{o.host}]" if ":" in o.host else o.host
    return host if o.port == (443 if o.scheme == "https" else 80) else f"{host}:{o.port}"


def request_bytes(o: Origin, method: str, target: str, headers: list[tuple[str, str]], body: Optional[bytes]) -> bytes:
    """Encode a request. Headers must have been checked for line breaks."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host_header(o)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None or method == "POST":
        lines.append(f"Content-Length: {len(body or b'')}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


class AnswerReader:
    """Reads one answer from a connection's bytes, in whatever parts they come."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._body = bytearray()
        self._read = self._head
        self._left = 0
        self._chunked = False
        #: Whether any byte came.
        self.began = False
        #: Whether the connection may be used again.
        self.reusable = False
        #: The answer, once it is complete.
        self.response: Optional[Response] = None
        self._status = 0
        self._headers: dict[str, str] = {}

    def feed(self, data: bytes) -> bool:
        """Take what came; empty is the end of the connection. It returns whether the answer is complete."""
        self.began = self.began or bool(data)
        if not data:
            if self._read != self._until_end:
                raise ProtocolError("the connection ended within the answer" if self.began else "the connection ended without an answer")
            self._finish()
            return True
        self._buffer += data
        while self.response is None and self._read():
            pass
        if self._buffer and self.response is not None:
            self.reusable = False  # more than the answer came
        return self.response is not None

    def _line(self) -> Optional[bytes]:
        at = self._buffer.find(b"\n")
        if at < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise ProtocolError("a line without an end")
            return None
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return line.rstrip(b"\r")

    def _head(self) -> bool:
        at = self._buffer.find(b"\r\n\r\n")
        if at < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise ProtocolError("headers without an end")
            return False
        lines = self._buffer[:at].decode("latin-1").split("\r\n")
        del self._buffer[: at + 4]
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit() and len(code) == 3):
            raise ProtocolError(f"not an answer of HTTP: {lines[0][:80]!r}")
        status = int(code)
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(f"not a header: {line[:80]!r}")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if 100 <= status < 200:  # another one follows
            return True
        self._status, self._headers = status, headers
        self.reusable = version != "HTTP/1.0" and "close" not in headers.get("connection", "").lower()
        encoding = headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if status in (204, 304):
            self._finish()
        elif encoding == "chunked":
            self._read = self._chunk
        elif encoding:
            raise ProtocolError(f"transfer-encoding {encoding[:40]!r}")
        elif length is None:
            self.reusable = False
            self._read = self._until_end
        elif not (length.isascii() and length.isdigit()):
            raise ProtocolError(f"content-length {length[:40]!r}")
        else:
            self._left = int(length)
            if self._left > MAX_ANSWER:
                raise TooMuch
            self._read = self._fixed
            if self._left == 0:
                self._finish()
        return True

    def _take(self, n: int) -> int:
        part = self._buffer[:n]
        del self._buffer[:n]
        self._body += part
        if len(self._body) > MAX_ANSWER:
            raise TooMuch
        return len(part)

    def _fixed(self) -> bool:
        self._left -= self._take(self._left)
        if self._left == 0:
            self._finish()
        return False

    def _until_end(self) -> bool:
        self._take(len(self._buffer))
        return False

    def _chunk(self) -> bool:
        """Read the line before a chunk."""
        line = self._line()
        if line is None:
            return False
        try:
            self._left = int(line.split(b";")[0].strip(), 16)
        except ValueError:
            raise ProtocolError("not the length of a chunk") from None
        self._read = self._chunk_body if self._left > 0 else self._trailer
        return True

    def _chunk_body(self) -> bool:
        if self._left > 0:
            self._left -= self._take(self._left)
        if self._left > 0 or self._line() is None:
            return False
        self._read = self._chunk
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line == b"":
            self._finish()
        return line is not None

    def _finish(self) -> None:
        self.response = Response(self._status, self._headers, bytes(self._body))
