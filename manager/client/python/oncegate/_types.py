"""What calls send and get. Durations are seconds."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

from ._errors import ManagerError

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


def parse_time(text: Any) -> Optional[datetime]:
    """Read a time of the API; None if there is none."""
    if not isinstance(text, str):
        return None
    m = _TIME.fullmatch(text)
    if m is None:
        raise ValueError(f"not a time: {text!r}")
    whole = datetime.fromisoformat(m[1] + ("+00:00" if m[3] == "Z" else m[3]))
    return whole + timedelta(microseconds=int((m[2] or "").ljust(6, "0")[:6]))


def format_time(name: str, at: datetime) -> str:
    """Write a time as the API takes it."""
    if at.tzinfo is None:
        raise ValueError(f"{name} {at}: must have a time zone")
    return at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def millis(seconds: float) -> int:
    """Seconds as the API's milliseconds."""
    return round(seconds * 1000)


@dataclass(frozen=True)
class Lease:
    """A worker's lease of a job."""

    worker: str
    token: str  # for the worker only
    expires_in: float  # seconds, from the answer on


@dataclass(frozen=True)
class AttemptError:
    """How an attempt ended that did not do the work."""

    attempt: int
    at: Optional[datetime]
    worker: str
    error: str


@dataclass(frozen=True)
class Job:
    """A job as the manager returned it. Members that do not apply are None, empty or false."""

    id: str
    function: str
    state: str  # scheduled, queued, active, complete, failed, cancelled, replayed or expired
    payload: Any = None
    key: str = ""
    concurrency_key: str = ""
    batch: str = ""  # the id of the batch that the job belongs to
    after: str = ""  # the id of the batch whose callback it is
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    run_at: Optional[datetime] = None
    created_at: Optional[datetime] = None
    expires_at: Optional[datetime] = None  # no attempt begins from then on
    on_expiry: str = ""
    timeout: float = 0.0  # seconds for each attempt; 0: only its lease bounds it
    started_at: Optional[datetime] = None
    finished_at: Optional[datetime] = None
    submitter: str = ""
    result: Any = None
    error: str = ""
    errors: Sequence[AttemptError] = ()  # of the last five attempts that failed, the oldest first
    traceparent: str = ""  # of the span that submitted the job
    event: str = ""  # that made the job; empty if it was submitted
    cancel_requested: bool = False  # cancelled while a worker has it
    replayed_as: str = ""
    lease: Optional[Lease] = None
    wal_locations: Mapping[str, str] = field(default_factory=dict)
    deduplicated: bool = False  # the submission was dropped as a duplicate of this job
    existing: bool = False  # the job held the submission's key already
    replayed: bool = False  # the answer was recorded for an earlier attempt
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)  # all members of the manager's answer

    @property
    def terminal(self) -> bool:
        """Whether the job is over."""
        return self.state in ("complete", "failed", "cancelled", "replayed", "expired")

    @staticmethod
    def parse(v: Any, replayed: bool = False) -> Job:
        """Read a job of the API. It raises ValueError for anything else."""
        if not isinstance(v, dict) or not _text(v, "id") or not _text(v, "state"):
            raise ValueError("no job")
        lease = v.get("lease")
        try:
            return Job(
                id=v["id"],
                function=_text(v, "function"),
                state=v["state"],
                payload=v.get("payload"),
                key=_text(v, "key"),
                concurrency_key=_text(v, "concurrency_key"),
                batch=_text(v, "batch"),
                after=_text(v, "after"),
                priority=int(v.get("priority") or 0),
                attempt=int(v.get("attempt") or 0),
                max_attempts=int(v.get("max_attempts") or 0),
                run_at=parse_time(v.get("run_at")),
                created_at=parse_time(v.get("created_at")),
                expires_at=parse_time(v.get("expires_at")),
                on_expiry=_text(v, "on_expiry"),
                timeout=(v.get("timeout_ms") or 0) / 1000,
                started_at=parse_time(v.get("started_at")),
                finished_at=parse_time(v.get("finished_at")),
                submitter=_text(v, "submitter"),
                result=v.get("result"),
                error=_text(v, "error"),
                errors=tuple(
                    AttemptError(int(e["attempt"]), parse_time(e.get("at")), _text(e, "worker"), _text(e, "error"))
                    for e in v.get("errors") or ()
                ),
                traceparent=_text(v, "traceparent"),
                event=_text(v, "event"),
                cancel_requested=v.get("cancel_requested") is True,
                replayed_as=_text(v, "replayed_as"),
                lease=Lease(_text(lease, "worker"), _text(lease, "token"), lease["expires_in_ms"] / 1000) if lease else None,
                wal_locations=dict(v.get("wal_locations") or {}),
                deduplicated=v.get("deduplicated") is True,
                existing=v.get("existing") is True,
                replayed=replayed,
                raw=v,
            )
        except (TypeError, KeyError, AttributeError) as e:
            raise ValueError(f"no job: {e!r}") from None


def _text(v: Any, name: str) -> str:
    text = v.get(name)
    return text if isinstance(text, str) else ""


@dataclass(frozen=True)
class Dedup:
    """Asks the manager to drop duplicates of a job."""

    strategy: str = ""  # until_executing, the default, or until_executed
    key: str = ""  # identifies duplicates instead of the job's key or payload
    ttl: Optional[float] = None  # seconds, 1 to 366 days; 6 hours if None
    if_deduplicated: str = ""  # "reschedule_once" runs the job once more if duplicates were dropped

    def json(self) -> dict[str, Any]:
        """The API's form."""
        out: dict[str, Any] = {}
        for name in ("strategy", "key", "if_deduplicated"):
            if value := getattr(self, name):
                out[name] = value
        if self.ttl is not None:
            out["ttl_ms"] = millis(self.ttl)
        return out


@dataclass(frozen=True)
class Submission:
    """A job to enqueue."""

    function: str
    payload: Any = None  # any JSON value of at most 1 MiB, nested at most 64 deep
    id: str = ""  # made by the manager if empty
    key: str = ""  # one live job at a time holds it
    concurrency_key: str = ""  # groups jobs of a function, such as those of a tenant, which take turns and may be limited
    priority: int = 0  # -32768 to 32767, higher runs first
    run_at: Optional[datetime] = None  # or delay; at most 366 days ahead
    delay: Optional[float] = None  # seconds
    max_attempts: Optional[int] = None  # 1 to 1000; 25 if None
    expires_at: Optional[datetime] = None  # or expires_in; no attempt begins from then on
    expires_in: Optional[float] = None  # seconds, from the submission on
    on_expiry: str = ""  # "drop", the default, ends the job as expired, "dead_letter" as failed
    timeout: Optional[float] = None  # seconds for each attempt, 0.1 s to 24 h; None: only its lease bounds it
    dedup: Optional[Dedup] = None
    on_duplicate: str = ""  # "reject", the default, or "return_existing"
    wal_locations: Optional[Mapping[str, str]] = None
    #: Of the call; drawn from the client's Keys if empty. A program that may crash between two attempts stores the key with its
    #: work, and passes it here.
    idempotency_key: str = ""
    traceparent: str = ""  # the W3C trace context of the span that submits; not in batches

    def json(self) -> dict[str, Any]:
        """The API's form, without the idempotency key."""
        out: dict[str, Any] = {"function": self.function}
        for name in ("payload", "id", "key", "concurrency_key", "priority", "max_attempts", "on_expiry", "on_duplicate", "wal_locations"):
            value = getattr(self, name)
            if value is not None and not (name != "payload" and value in ("", 0) and name != "max_attempts"):
                out[name] = value
        for name in ("run_at", "expires_at"):
            if (at := getattr(self, name)) is not None:
                out[name] = format_time(name, at)
        for name, member in (("delay", "delay_ms"), ("expires_in", "expires_in_ms"), ("timeout", "timeout_ms")):
            if (seconds := getattr(self, name)) is not None:
                out[member] = millis(seconds)
        if self.dedup is not None:
            out["dedup"] = self.dedup.json()
        return out


@dataclass(frozen=True)
class Submitted:
    """The answer to one submission of a batch: a job or an error."""

    idempotency_key: str  # for a repetition
    job: Optional[Job] = None
    error: Optional[ManagerError] = None  # one that is temporary asks to repeat the submission with the same key


@dataclass(frozen=True)
class Event:
    """Sent to the functions that subscribe to its name."""

    name: str
    payload: Any = None
    idempotency_key: str = ""  # of the call; drawn from the client's Keys if empty
    traceparent: str = ""


@dataclass(frozen=True)
class EventJob:
    """A job that an event made."""

    id: str
    function: str


@dataclass(frozen=True)
class Sent:
    """The answer to an event."""

    event: str
    jobs: Sequence[EventJob]  # in the order of their functions; none if no function subscribes to the event
    replayed: bool = False  # the answer was recorded for an earlier attempt


@dataclass(frozen=True)
class Batch:
    """Jobs that are submitted together, all of them or none."""

    jobs: Sequence[Submission]  # 1 to 1000; their idempotency_key counts for nothing
    #: Runs once when the last of them has ended. The ``after`` of its job is the batch's id. It has neither run_at nor delay.
    callback: Optional[Submission] = None
    idempotency_key: str = ""  # of the call; drawn from the client's Keys if empty
    traceparent: str = ""


@dataclass(frozen=True)
class BatchInfo:
    """What became of the jobs of a batch."""

    id: str
    total: int  # jobs of the batch; one that another job stands for does not count
    pending: int  # have not ended; the others did as the counts say
    complete: int
    failed: int
    cancelled: int
    expired: int
    jobs: Sequence[str] = ()  # ids in the order of the request; only in the answer to start_batch
    callback: str = ""  # the id of its job
    created_at: Optional[datetime] = None
    finished_at: Optional[datetime] = None
    replayed: bool = False  # the answer was recorded for an earlier attempt


@dataclass(frozen=True)
class ListQuery:
    """Selects jobs. What is empty or None does not restrict it."""

    function: str = ""
    state: str = ""
    submitter: str = ""
    key: str = ""
    concurrency_key: str = ""
    older_than: Optional[float] = None  # seconds since the end, or since the submission of a job that has not ended
    newer_than: Optional[float] = None  # for which that is fewer seconds ago: more than older_than
    error: str = ""  # the last error is of the same kind
    error_text: str = ""  # the last error contains this text, in upper or lower case
    limit: Optional[int] = None  # 1 to 1000; 100 if None
    cursor: str = ""  # of the page before
    payloads: bool = False  # show payloads and results as well

    def query(self) -> dict[str, Any]:
        """The parameters of the API."""
        out = {name: value for name, value in vars(self).items() if value not in (None, "")}
        out["payloads"] = "true" if self.payloads else "false"
        for name in ("older_than", "newer_than"):
            if name in out:
                out[name + "_ms"] = millis(out.pop(name))
        return out


@dataclass(frozen=True)
class Page:
    """One page of jobs; cursor is empty on the last one."""

    jobs: Sequence[Job]
    cursor: str


@dataclass(frozen=True)
class Beat:
    """The answer to a heartbeat."""

    cancelled: bool  # the job was cancelled, and the worker should stop
    expires_in: float  # seconds, from the answer on


@dataclass(frozen=True)
class Answer:
    """What the ledger records for a key."""

    status: int  # 100 to 999
    headers: Sequence[tuple[str, str]] = ()  # names in lower case
    body: bytes = b""
    body_omitted: bool = False  # the body was too large to keep, and is empty here

    def json(self) -> dict[str, Any]:
        """The API's form."""
        out: dict[str, Any] = {"status": self.status}
        if self.headers:
            out["headers"] = [[name, value] for name, value in self.headers]
        if self.body:
            out["body"] = base64.b64encode(self.body).decode("ascii")
        if self.body_omitted:
            out["body_omitted"] = True
        return out

    @staticmethod
    def parse(v: Any) -> Answer:
        """Read a recorded answer. It raises ValueError for anything else."""
        try:
            headers = tuple((str(h[0]), str(h[1])) for h in v.get("headers") or ())
            return Answer(int(v["status"]), headers, base64.b64decode(v.get("body") or ""), v.get("body_omitted") is True)
        except (TypeError, KeyError, AttributeError, IndexError) as e:
            raise ValueError(f"no recorded answer: {e!r}") from None


@dataclass(frozen=True)
class Reservation:
    """What the ledger says of a key."""

    #: reserved: do the work, and then commit, reject or release; pending: another attempt has the key; committed or rejected:
    #: the work is done, with this answer.
    state: str
    token: str = ""  # of the reservation
    expires_in: float = 0.0  # seconds
    answer: Optional[Answer] = None
