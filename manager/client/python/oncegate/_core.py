"""The client without input and output: how calls are made, repeated and judged.

A call is a generator. It yields a Request, and is sent the Response or thrown the error of the connection; or it yields a Pause.
The sync and the async client differ only in who does what the generators yield.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, TypeVar, Union
from urllib.parse import urljoin

from . import _http
from ._errors import BadAnswer, ManagerError, NoAnswer, OncegateError, manager_error
from ._http import Origin, Request, Response
from ._keys import Keys, check_key


@dataclass
class Pause:
    """Wait for so many seconds."""

    seconds: float


T = TypeVar("T")
Steps = Generator[Union[Request, Pause], Any, T]

_TOKEN = re.compile(r"[!-~]{1,4096}")
_TRACE = re.compile(r"[!-~]{0,256}")
_JSON = "application/json"


@dataclass(frozen=True)
class Options:
    """How a client calls. See Client for the meaning."""

    url: str
    failover: Sequence[str] = ()
    token: Optional[str] = None
    keys: Optional[Keys] = None
    timeout: float = 15.0
    backoff_base: float = 0.05
    backoff_max: float = 5.0
    max_retry_after: Optional[float] = None
    max_attempts: Optional[int] = None


@dataclass
class Call:
    """One call of the API."""

    method: str
    path: str
    body: Any = None
    key: str = ""  # idempotency key
    trace: str = ""
    wait: float = 0.0  # how long the manager may let the call wait
    once: bool = False  # do not repeat


@dataclass
class Reply:
    """The JSON of a success."""

    value: Any
    replayed: bool
    call: Call

    def object(self) -> dict[str, Any]:
        """The value, which must be an object."""
        if not isinstance(self.value, dict):
            raise self.not_ours("no object")
        return self.value

    def not_ours(self, what: str) -> BadAnswer:
        """The error for an answer that no manager would send. It must never count as a success."""
        return not_ours(self.call, what)


def not_ours(call: Call, what: str) -> BadAnswer:
    """The error for a success that no manager would send."""
    return BadAnswer(f"{call.method} {call.path}: an answer that is not of a manager: {what}")


def encode(value: Any) -> bytes:
    """Encode a value as JSON. It raises TypeError, ValueError or RecursionError for what is none.

    The manager bounds the bytes, so only what UTF-8 cannot express is escaped: half of a surrogate pair.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


class Caller:
    """Makes calls as generators. It is safe for use by several threads."""

    def __init__(self, o: Options) -> None:
        self.bases = [_base(o.url)]
        if len(o.failover) > 15 or o.failover and self.bases[0][0].scheme == "unix":
            raise ValueError(f"failover of {len(o.failover)} URLs: must be at most 15, and none beside a unix: URL")
        self.bases += [_base(url, unix=False) for url in o.failover]
        for name in ("timeout", "backoff_base", "backoff_max"):
            if not getattr(o, name) > 0:
                raise ValueError(f"{name} {getattr(o, name)}: must be more than 0 seconds")
        if o.token is not None and not _TOKEN.fullmatch(o.token):
            raise ValueError("token: must be up to 4096 visible ASCII characters")
        if o.max_attempts is not None and o.max_attempts < 1:
            raise ValueError(f"max_attempts {o.max_attempts}: must be at least 1, or None")
        if o.max_retry_after is not None and o.max_retry_after < 0:
            raise ValueError(f"max_retry_after {o.max_retry_after}: must not be negative")
        self.keys = o.keys or Keys(f"client-{random.SystemRandom().getrandbits(64):x}")
        self.options = o
        self._at = 0  # the index of the manager in use

    def persistent(self) -> Caller:
        """A caller like this that repeats calls until their time is over."""
        return Caller(replace(self.options, keys=self.keys, max_attempts=None, max_retry_after=None))

    def call(self, c: Call, deadline: Optional[float] = None) -> Steps[Reply]:
        """Repeat a call until it has a final answer. The deadline is one of the monotonic clock."""
        body = None
        if c.body is not None:
            try:
                body = encode(c.body)
            except (TypeError, ValueError, RecursionError) as e:
                raise ValueError(f"{c.method} {c.path}: the body cannot be encoded as JSON: {e}") from e
        if c.key:
            check_key(c.key)
        if not _TRACE.fullmatch(c.trace):
            raise ValueError(f"traceparent {c.trace[:64]!r}: must be visible ASCII characters")
        attempt = 0
        while True:
            attempt += 1
            at = self._at
            try:
                return (yield from self._attempt(at, c, body, deadline))
            except OncegateError as e:
                error = e
            moved = self._move_on(at, c, error, deadline)
            if c.once or not error.temporary or attempt == self.options.max_attempts:
                raise error
            if not moved and self._too_late(error):
                raise error
            rest = 0.0
            if not moved:
                rest = self.backoff(attempt, error)
            elif attempt % len(self.bases) == 0:
                rest = self.backoff(attempt // len(self.bases), error)
            if deadline is not None and time.monotonic() + rest >= deadline:
                raise error
            yield Pause(rest)

    def backoff(self, attempt: int, error: Optional[OncegateError] = None) -> float:
        """The pause after an attempt (1 for the first) failed: half of it is random."""
        o = self.options
        pause = o.backoff_max if attempt > 32 else min(o.backoff_max, o.backoff_base * 2 ** (attempt - 1))
        pause = pause / 2 + random.random() * pause / 2
        # A manager may be ready sooner than it says, for example after an operator has ended a quarantine.
        return max(pause, min(error.retry_after, 3600.0)) if isinstance(error, ManagerError) else pause

    def _too_late(self, error: OncegateError) -> bool:
        """Whether the manager asks for a longer wait than a call may take."""
        most = self.options.max_retry_after
        return most is not None and isinstance(error, ManagerError) and error.retry_after > most

    def _move_on(self, at: int, c: Call, error: OncegateError, deadline: Optional[float]) -> bool:
        """Let the next calls go to the next manager after one did not answer, or said that it cannot work.

        It returns whether there is another one. The end of the caller's own wait says nothing about the manager.
        """
        own_end = c.wait > 0 and deadline is not None and time.monotonic() >= deadline
        gone = unreachable(error) or isinstance(error, ManagerError) and error.code == "unavailable"
        if len(self.bases) == 1 or own_end or not gone:
            return False
        if self._at == at:
            self._at = (at + 1) % len(self.bases)
        return True

    def _attempt(self, at: int, c: Call, body: Optional[bytes], deadline: Optional[float]) -> Steps[Reply]:
        origin, prefix = self.bases[at]
        target = prefix + c.path
        for _ in range(11):
            answer: Response
            try:
                answer = yield self._request(origin, origin == self.bases[at][0], target, c, body, deadline)
            except _http.TooMuch:
                raise BadAnswer(f"{c.method} {c.path}: answer of more than {_http.MAX_ANSWER} bytes") from None
            except (OSError, EOFError, TimeoutError, _http.ProtocolError) as e:
                raise NoAnswer(f"{c.method} {c.path}: no answer: {e or type(e).__name__}") from e
            to = answer.headers.get("location")
            # 301, 302 and 303 make a GET of a POST. A redirected submission would list jobs, and nothing would be submitted.
            if to is None or not (answer.status in (307, 308) or answer.status in (301, 302, 303) and c.method == "GET"):
                return self._judge(c, answer)
            origin, target = _redirected(origin, target, to, c)
        raise BadAnswer(f"{c.method} {c.path}: stopped after 10 redirects")

    def _request(
        self, origin: Origin, own: bool, target: str, c: Call, body: Optional[bytes], deadline: Optional[float]
    ) -> Request:
        headers = [("Accept", _JSON)]
        if body is not None:
            headers.append(("Content-Type", _JSON))
        if c.key:
            headers.append(("Idempotency-Key", c.key))
        if c.trace:
            headers.append(("Traceparent", c.trace))
        if self.options.token is not None and own:
            headers.append(("Authorization", "Bearer " + self.options.token))
        data = _http.request_bytes(origin, c.method, target, headers, body)
        return Request(origin, data, c.method, self.options.timeout + c.wait, self.options.timeout, deadline)

    def _judge(self, c: Call, answer: Response) -> Reply:
        replayed = answer.headers.get("idempotent-replayed") == "true"
        if not 200 <= answer.status <= 299:
            raise _error(answer, replayed)
        try:
            return Reply(json.loads(answer.body), replayed, c)
        except (ValueError, RecursionError) as e:
            raise not_ours(c, f"status {answer.status}, {e}") from None


def unreachable(error: Optional[Exception]) -> bool:
    """Whether a call had no answer of a manager: none at all, or one of a proxy that had none."""
    if isinstance(error, ManagerError):
        return error.temporary and not error.code
    return isinstance(error, NoAnswer)


def _base(url: str, unix: bool = True) -> tuple[Origin, str]:
    if unix and url.startswith("unix:") and len(url) > 5:
        return Origin("unix", url[5:]), ""
    try:
        return _http.origin_of(url)
    except ValueError:
        raise ValueError(
            f"url {url!r}: must be http:// or https:// with a host, for example http://127.0.0.1:8090, or unix:PATH"
        ) from None


def _redirected(origin: Origin, target: str, to: str, c: Call) -> tuple[Origin, str]:
    scheme = "http" if origin.scheme == "unix" else origin.scheme
    url, _, query = urljoin(f"{scheme}://{_http.host_header(origin)}{target}", to).partition("#")[0].partition("?")
    try:
        moved, path = _http.origin_of(url)
        path.encode("ascii"), query.encode("ascii")
        if re.search(r"[\x00-\x20\x7f]", path + query):
            raise ValueError
    except ValueError:
        raise BadAnswer(f"{c.method} {c.path}: a redirect to {to[:200]!r}") from None
    if origin.scheme == "unix" and moved.host == "localhost":
        moved = origin
    return moved, (path or "/") + ("?" + query if query else "")


def _error(answer: Response, replayed: bool) -> ManagerError:
    retry_after = 0.0
    after = answer.headers.get("retry-after", "")
    if after.isascii() and after.isdigit() and len(after) < 10:
        retry_after = float(after)
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            p = json.loads(answer.body)
            if isinstance(p, dict) and isinstance(p.get("code"), str):
                return problem(p, answer.status, retry_after, replayed)
        except (ValueError, RecursionError):
            pass
    to = answer.headers.get("location")
    if to and answer.status // 100 == 3:
        detail = f"redirected to {to[:200]!r}; the client's URL must lead to the manager itself"
    else:
        detail = repr(answer.body[:200].decode("utf-8", "replace"))
    return manager_error(answer.status, "", detail, retry_after=retry_after, replayed=replayed)


def problem(p: dict[str, Any], status: int, retry_after: float = 0.0, replayed: bool = False) -> ManagerError:
    """Make an error of a problem document."""
    title = str(p.get("title") or "")
    return manager_error(
        status, str(p["code"]), str(p.get("detail") or title), title=title, retry_after=retry_after, replayed=replayed
    )
