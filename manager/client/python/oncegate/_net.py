"""Connections: of blocking sockets, and of asyncio."""

from __future__ import annotations

import asyncio
import collections
import select
import socket
import ssl
import threading
import time
from typing import Optional

from ._fork import call_after_fork
from ._http import AnswerReader, Origin, Request, Response

_CONNECT = 5.0  # seconds for a connection, with its TLS
_IDLE_CONNECTIONS = 256
_IDLE_SECONDS = 90.0
_PART = 64 << 10


def _left(r: Request, patience: float) -> float:
    """How long to wait for the next part: not beyond the call's deadline."""
    if r.deadline is not None:
        patience = min(patience, r.deadline - time.monotonic())
    if patience <= 0:
        raise TimeoutError("the call's time is over")
    return patience


class SyncNet:
    """Exchanges requests for responses over blocking sockets. It is safe for use by several threads."""

    def __init__(self, tls: Optional[ssl.SSLContext]) -> None:
        self._tls = tls
        self._idle: collections.deque[tuple[Origin, socket.socket, float]] = collections.deque()
        self.forked()
        call_after_fork(self)

    def forked(self) -> None:
        """Leave the idle connections to the process that made them."""
        self._lock = threading.Lock()
        while self._idle:
            self._idle.pop()[1].close()

    def exchange(self, r: Request) -> Response:
        """Send a request and read its answer. It raises OSError and the errors of AnswerReader."""
        s = self._take(r.origin) or self._connect(r)
        keep = False
        try:
            s.settimeout(_left(r, r.rest))
            s.sendall(r.data)
            reader, until = AnswerReader(), time.monotonic() + r.first
            while reader.response is None:
                s.settimeout(_left(r, until - time.monotonic()))
                reader.feed(s.recv(_PART))
                until = time.monotonic() + r.rest
            keep = reader.reusable
            return reader.response
        finally:
            if keep:
                self._give(r.origin, s)
            else:
                s.close()

    def _connect(self, r: Request) -> socket.socket:
        o, patience = r.origin, _left(r, _CONNECT)
        if o.scheme == "unix":
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                s.settimeout(patience)
                s.connect(o.host)
            except BaseException:
                s.close()
                raise
            return s
        s = socket.create_connection((o.host, o.port), patience)
        try:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if o.scheme == "https":
                return (self._tls or ssl.create_default_context()).wrap_socket(s, server_hostname=o.host)
            return s
        except BaseException:
            s.close()
            raise

    def _take(self, o: Origin) -> Optional[socket.socket]:
        """Return an idle connection that is still open."""
        now = time.monotonic()
        with self._lock:
            for i in range(len(self._idle) - 1, -1, -1):
                origin, s, since = self._idle[i]
                if origin != o:
                    continue
                del self._idle[i]
                if now - since < _IDLE_SECONDS and not _readable(s):
                    return s
                s.close()
        return None

    def _give(self, o: Origin, s: socket.socket) -> None:
        with self._lock:
            self._idle.append((o, s, time.monotonic()))
            if len(self._idle) > _IDLE_CONNECTIONS:
                self._idle.popleft()[1].close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            while self._idle:
                self._idle.pop()[1].close()


def _readable(s: socket.socket) -> bool:
    """Whether something came on a connection that has no request: its end, or bytes that belong to none."""
    if hasattr(select, "poll"):
        p = select.poll()
        p.register(s, select.POLLIN)
        return bool(p.poll(0))
    return bool(select.select([s], [], [], 0)[0])


class AsyncNet:
    """Exchanges requests for responses over asyncio's streams. It belongs to one event loop."""

    def __init__(self, tls: Optional[ssl.SSLContext]) -> None:
        self._tls = tls
        self._idle: collections.deque[tuple[Origin, asyncio.StreamReader, asyncio.StreamWriter, float]] = collections.deque()

    async def exchange(self, r: Request, leave: Optional[asyncio.Event] = None) -> Response:
        """Send a request and read its answer. It raises OSError and the errors of AnswerReader.

        Once leave is set, it ends its sending half of the connection: the manager answers then at once.
        """
        connection = self._take(r.origin)
        source, sink = connection or await self._connect(r)
        keep = False
        leaver: Optional[asyncio.Task[None]] = None
        try:
            sink.write(r.data)
            await asyncio.wait_for(sink.drain(), _left(r, r.rest))
            if leave is not None:
                leaver = asyncio.ensure_future(_leave(leave, sink))
            reader, until = AnswerReader(), time.monotonic() + r.first
            while reader.response is None:
                reader.feed(await asyncio.wait_for(source.read(_PART), _left(r, until - time.monotonic())))
                until = time.monotonic() + r.rest
            keep = reader.reusable and (leave is None or not leave.is_set())
            return reader.response
        except asyncio.TimeoutError:  # the built-in TimeoutError only since Python 3.11
            raise TimeoutError("no answer in time") from None
        finally:
            if leaver is not None:
                leaver.cancel()
            if keep:
                self._give(r.origin, source, sink)
            else:
                sink.close()

    async def _connect(self, r: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        o = r.origin
        if o.scheme == "unix":
            opening = asyncio.open_unix_connection(o.host)
        elif o.scheme == "https":
            opening = asyncio.open_connection(o.host, o.port, ssl=self._tls or ssl.create_default_context())
        else:
            opening = asyncio.open_connection(o.host, o.port)
        try:
            return await asyncio.wait_for(opening, _left(r, _CONNECT))
        except asyncio.TimeoutError:
            raise TimeoutError("no connection in time") from None

    def _take(self, o: Origin) -> Optional[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        now = time.monotonic()
        for i in range(len(self._idle) - 1, -1, -1):
            origin, source, sink, since = self._idle[i]
            if origin != o:
                continue
            del self._idle[i]
            if now - since < _IDLE_SECONDS and not source.at_eof() and not sink.is_closing() and source.exception() is None:
                return source, sink
            sink.close()
        return None

    def _give(self, o: Origin, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self._idle.append((o, source, sink, time.monotonic()))
        if len(self._idle) > _IDLE_CONNECTIONS:
            self._idle.popleft()[2].close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[2].close()


async def _leave(leave: asyncio.Event, sink: asyncio.StreamWriter) -> None:
    await leave.wait()
    if sink.can_write_eof():  # not with TLS
        sink.write_eof()
