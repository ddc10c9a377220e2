"""Idempotency keys."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from typing import Union

from ._fork import call_after_fork

_CLIENT_ID = re.compile(r"[!-~]{1,217}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"(?:;.*)?')
_KEY = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")


class Keys:
    """Makes idempotency keys {client_id}:{sequence}:{nonce}.

    The sequence grows with every key. The nonce is random for every Keys, so a program that restarts, or another one with the
    same client id, never repeats a key. It is safe for use by several threads.
    """

    def __init__(self, client_id: str) -> None:
        """client_id has 1 to 217 visible ASCII characters, colons included, for example host1.dc1:12345."""
        if not _CLIENT_ID.fullmatch(client_id):
            raise ValueError(f"client id {client_id[:64]!r}: must be 1 to 217 visible ASCII characters")
        #: The first part of every key.
        self.client_id = client_id
        self.forked()
        call_after_fork(self)

    def forked(self) -> None:
        """Begin with a new nonce: a process and its forks never make the same key."""
        self._nonce = secrets.token_hex(8)
        self._sequence = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, file: Union[str, "os.PathLike[str]"]) -> Keys:
        """Make keys with the client id in the file, so that a program keeps its id over restarts.

        If there is no file, it is created, with its directory and a random id. Two programs that start at the same time and
        share the file get the same id.
        """
        path = os.fspath(file)
        for _ in range(3):
            try:
                with open(path, encoding="utf-8") as f:
                    text = f.read(1024)
            except FileNotFoundError:
                _create_id(path)
                continue
            try:
                return cls(text.strip())
            except ValueError as e:
                raise ValueError(f"{path}: {e}") from None
        raise OSError(f"{path}: the client id vanishes as soon as it is made")

    def next(self) -> str:
        """Return a new key."""
        with self._lock:
            self._sequence += 1
            n = self._sequence
        return f"{self.client_id}:{n}:{self._nonce}"


def _create_id(path: str) -> None:
    """Create the file complete or not at all: another program must not read half an id."""
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".client-id-", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as f:
            f.write(f"client-{secrets.token_hex(8)}\n")
            f.flush()
            os.fsync(f.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another program was faster
    finally:
        os.unlink(temporary)


def bare_key(key: str) -> str:
    """Return the key that an RFC 8941 string in quotes stands for, as the manager reads it in a header."""
    key = key.strip(" \t")
    quoted = _QUOTED.fullmatch(key)
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else key


def check_key(key: str) -> None:
    """Raise ValueError for an idempotency key that can never be sent."""
    if not _KEY.fullmatch(key) or "," in key and not key.startswith('"'):
        raise ValueError(
            f"idempotency key {key[:64]!r}: must be 1 to 255 printable ASCII characters, without a blank at an end, and without a comma"
        )
