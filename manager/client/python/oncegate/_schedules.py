"""Schedules and functions: what their calls send and get, and the calls. Durations are seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Optional
from urllib.parse import quote, urlencode

from ._core import Call, Caller, Reply, Steps
from ._types import Job, Submission, millis, parse_time


@dataclass(frozen=True)
class ScheduleSpec:
    """What a schedule enqueues, and when. From function to timeout the members are those of Submission."""

    cron: str  # minute, hour, day of month, month and day of week; or @hourly, @daily, @weekly, @monthly, @yearly
    function: str
    time_zone: str = ""  # a name of the time zone database, such as Europe/Vienna; UTC if empty
    payload: Any = None
    priority: int = 0
    max_attempts: Optional[int] = None
    expires_in: Optional[float] = None
    on_expiry: str = ""
    timeout: Optional[float] = None
    missed: str = ""  # which missed instants get a job: "one", the default, is the latest; "skip" is none, "all" the latest 1000
    overlap: str = ""  # "allow", the default, or "skip": no job while the last one is not over
    data_centers: str = ""  # "each", the default, or "home": of the data centres with this schedule, only the home of its name enqueues jobs

    def json(self) -> dict[str, Any]:
        """The API's form."""
        job = Submission(
            self.function, self.payload, priority=self.priority, max_attempts=self.max_attempts, expires_in=self.expires_in,
            on_expiry=self.on_expiry, timeout=self.timeout,
        )
        when = {"cron": self.cron, "time_zone": self.time_zone, "missed": self.missed, "overlap": self.overlap, "data_centers": self.data_centers}
        return dict(job.json(), **{name: value for name, value in when.items() if value})


@dataclass(frozen=True)
class Schedule:
    """A schedule as the manager returned it. Members that do not apply are None, empty or 0."""

    name: str
    cron: str
    time_zone: str
    function: str
    payload: Any = None  # not in a page
    priority: int = 0
    max_attempts: Optional[int] = None  # None: the manager's default
    expires_in: float = 0.0
    on_expiry: str = ""
    timeout: float = 0.0
    missed: str = ""
    overlap: str = ""
    data_centers: str = ""
    home: str = ""  # the data centre that enqueues the jobs of "home", where there are several
    paused: bool = False
    paused_at: Optional[datetime] = None
    created_at: Optional[datetime] = None
    changed_at: Optional[datetime] = None  # when a call last changed what it enqueues, or when
    next_at: Optional[datetime] = None  # the next instant; a paused schedule has none
    last_at: Optional[datetime] = None  # the latest instant that had a job
    last_job: str = ""  # the id of that job
    missed_instants: int = 0
    overlapped_instants: int = 0


@dataclass(frozen=True)
class SchedulePage:
    """One page of schedules, in order of their names; cursor is empty on the last one."""

    schedules: Sequence[Schedule]
    cursor: str


@dataclass(frozen=True)
class Rate:
    """A token bucket: it holds count tokens, and gets as many in each period."""

    count: int  # 1 to 1,000,000
    per: float  # seconds, 0.001 to 86,400


@dataclass(frozen=True)
class Limits:
    """Bounds the delivery of a function's jobs, by all managers of a store together. None: no bound."""

    max_running: Optional[int] = None  # jobs that workers have at the same time, 1 to 1,000,000
    max_running_per_key: Optional[int] = None  # those with the same concurrency key
    rate: Optional[Rate] = None

    def json(self) -> dict[str, Any]:
        """The API's form."""
        out: dict[str, Any] = {"max_running": self.max_running, "max_running_per_key": self.max_running_per_key}
        if self.rate is not None:
            out["rate"] = {"count": self.rate.count, "per_ms": millis(self.rate.per)}
        return {name: value for name, value in out.items() if value is not None}


@dataclass(frozen=True)
class FunctionRates:
    """What one manager did with a function's jobs in the last minute."""

    enqueued: int = 0
    claimed: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0


@dataclass(frozen=True)
class FunctionInfo:
    """A function, its limits, and how many jobs it has by state."""

    name: str
    paused: bool = False
    paused_at: Optional[datetime] = None
    queued: int = 0
    scheduled: int = 0
    active: int = 0
    dead: int = 0
    at_least: bool = False  # there are more jobs than the counts say
    oldest_queued: float = 0.0  # for how long the queued job that waits longest could have run
    last_dead_at: Optional[datetime] = None
    limits: Optional[Limits] = None
    last_minute: FunctionRates = field(default_factory=FunctionRates)


@dataclass(frozen=True)
class FunctionPage:
    """One page of functions; cursor is empty on the last one."""

    functions: Sequence[FunctionInfo]
    cursor: str


_DURATIONS = ("expires_in", "timeout", "oldest_queued")


def _members(of: type, v: Any, *required: str) -> dict[str, Any]:
    """The members of a class in an object of the API. Others are left out, so that a newer manager may have more."""
    if not isinstance(v, dict):
        raise ValueError(f"no {of.__name__}")
    for name in required:
        if not isinstance(v.get(name), str) or not v[name]:
            raise ValueError(f"no {name}")
    out: dict[str, Any] = {}
    for name in (f.name for f in fields(of)):
        if name in _DURATIONS and name + "_ms" in v:
            out[name] = v[name + "_ms"] / 1000
        elif v.get(name) is not None:
            out[name] = parse_time(v[name]) if name.endswith("_at") else v[name]
    return out


def _schedule(v: Any) -> Schedule:
    return Schedule(**_members(Schedule, v, "name", "cron", "time_zone", "function"))


def _function(v: Any) -> FunctionInfo:
    members = _members(FunctionInfo, v, "name")
    members["last_minute"] = FunctionRates(**_members(FunctionRates, members.get("last_minute", {})))
    if "limits" in members:
        limits = _members(Limits, members["limits"])
        if "rate" in limits:
            limits["rate"] = Rate(limits["rate"]["count"], limits["rate"]["per_ms"] / 1000)
        members["limits"] = Limits(**limits)
    return FunctionInfo(**members)


def _schedule_path(name: str) -> str:
    return "/v1/schedules/" + quote(name, safe="")


def schedule(c: Caller, method: str, name: str, verb: str, body: Any, deadline: Optional[float]) -> Steps[Schedule]:
    r = yield from c.call(Call(method, _schedule_path(name) + verb, body), deadline)
    try:
        return _schedule(r.value)
    except (TypeError, ValueError) as e:
        raise r.not_ours(f"no schedule: {e}") from None


def delete_schedule(c: Caller, name: str, deadline: Optional[float]) -> Steps[None]:
    yield from schedule(c, "DELETE", name, "", None, deadline)


def list_schedules(c: Caller, limit: Optional[int], cursor: str, deadline: Optional[float]) -> Steps[SchedulePage]:
    r = yield from _page(c, "/v1/schedules", limit, cursor, deadline)
    try:
        return SchedulePage([_schedule(v) for v in r.object()["schedules"]], str(r.object().get("cursor") or ""))
    except (KeyError, TypeError, ValueError) as e:
        raise r.not_ours(f"no list of schedules: {e!r}") from None


def run_schedule(c: Caller, name: str, key: str, deadline: Optional[float]) -> Steps[Job]:
    r = yield from c.call(Call("POST", _schedule_path(name) + "/run", key=key or c.keys.next()), deadline)
    try:
        return Job.parse(r.value, r.replayed)
    except ValueError as e:
        raise r.not_ours(str(e)) from None


def list_functions(c: Caller, limit: Optional[int], cursor: str, deadline: Optional[float]) -> Steps[FunctionPage]:
    r = yield from _page(c, "/v1/functions", limit, cursor, deadline)
    try:
        return FunctionPage([_function(v) for v in r.object()["functions"]], str(r.object().get("cursor") or ""))
    except (KeyError, TypeError, ValueError) as e:
        raise r.not_ours(f"no list of functions: {e!r}") from None


def set_limits(c: Caller, function: str, limits: Limits, deadline: Optional[float]) -> Steps[None]:
    r = yield from c.call(Call("PUT", "/v1/functions/" + quote(function, safe=""), limits.json()), deadline)
    if r.object().get("name") != function:
        raise r.not_ours(f"no function {function}")


def _page(c: Caller, path: str, limit: Optional[int], cursor: str, deadline: Optional[float]) -> Steps[Reply]:
    query = {name: value for name, value in (("limit", limit), ("cursor", cursor)) if value}
    return (yield from c.call(Call("GET", path + "?" + urlencode(query)), deadline))
