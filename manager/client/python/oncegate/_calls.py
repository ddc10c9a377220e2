"""The calls of the API, each a generator (see _core)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional
from urllib.parse import quote, urlencode

from ._core import Call, Caller, Pause, Reply, Steps, encode, problem
from ._errors import InvalidRequest, ManagerError, NoAnswer, OncegateError, TooLarge
from ._keys import bare_key
from ._types import Answer, Batch, BatchInfo, Beat, Event, EventJob, Job, ListQuery, Page, Reservation, Sent, Submission, Submitted, millis, parse_time

#: How long one call of wait lets the manager wait, in seconds.
_WAIT_STEP = 30.0

# Bounds of a batch; that of the bytes leaves room for what is around the items.
_BATCH_ITEMS = 128
_BATCH_BYTES = (2 << 20) - 64


def _job_of(r: Reply) -> Job:
    try:
        return Job.parse(r.value, r.replayed)
    except ValueError as e:
        raise r.not_ours(str(e)) from None


def _job_path(id: str) -> str:
    return "/v1/jobs/" + quote(id, safe="")


def ends(within: Optional[float]) -> Optional[float]:
    """The deadline of a call that may take so many seconds."""
    return None if within is None else time.monotonic() + within


def submit(c: Caller, s: Submission, deadline: Optional[float]) -> Steps[Job]:
    key = s.idempotency_key or c.keys.next()
    return _job_of((yield from c.call(Call("POST", "/v1/jobs", s.json(), key=key, trace=s.traceparent), deadline)))


def submit_wait(c: Caller, s: Submission, deadline: Optional[float]) -> Steps[Job]:
    first = yield from submit(c, s, deadline)
    try:
        done = yield from wait(c, first.id, deadline)
    except OncegateError as e:
        e.job = first
        raise
    return replace(done, replayed=first.replayed, deduplicated=first.deduplicated, existing=first.existing)


def submit_batch(c: Caller, all: Sequence[Submission], deadline: Optional[float]) -> Steps[list[Submitted]]:
    keys = [s.idempotency_key or c.keys.next() for s in all]
    items = [dict(s.json(), idempotency_key=bare_key(key)) for s, key in zip(all, keys)]
    sizes = [len(encode(item)) + 1 for item in items]
    answers: list[Submitted] = []
    while len(answers) < len(items):
        begin = end = len(answers)
        size = 0
        while end < len(items) and end - begin < _BATCH_ITEMS and (end == begin or size + sizes[end] < _BATCH_BYTES):
            size += sizes[end]
            end += 1
        try:
            answers += yield from _submit_part(c, items[begin:end], keys[begin:end], deadline)
        except (InvalidRequest, TooLarge) as e:
            if size <= _BATCH_BYTES:
                raise
            answers.append(Submitted(keys[begin], error=e))  # a single one, which is too large
    return answers


def _submit_part(c: Caller, items: list[dict[str, Any]], keys: list[str], deadline: Optional[float]) -> Steps[list[Submitted]]:
    r = yield from c.call(Call("POST", "/v1/jobs/batch", {"items": items}), deadline)
    results = r.object().get("results")
    if not isinstance(results, list) or len(results) != len(items):
        raise r.not_ours(f"not {len(items)} results")
    out: list[Submitted] = []
    for v, key in zip(results, keys):
        try:
            replayed = v.get("replayed") is True
            if v.get("code"):
                out.append(Submitted(key, error=problem(v, int(v["status"]), float(v.get("retry_after") or 0), replayed)))
            else:
                if int(v["status"]) // 100 != 2:
                    raise ValueError("no status")
                out.append(Submitted(key, job=Job.parse(v, replayed)))
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise r.not_ours(f"a result that is no job: {e}") from None
    return out


def wait(c: Caller, id: str, deadline: Optional[float]) -> Steps[Job]:
    while True:
        j = _job_of((yield from c.call(_waiting(_job_path(id)), deadline)))
        if j.terminal:
            return j
        yield _again(f"job {id} is {j.state}", deadline)


def _waiting(path: str) -> Call:
    return Call("GET", f"{path}?wait_ms={millis(_WAIT_STEP)}", wait=_WAIT_STEP)


def _again(now: str, deadline: Optional[float]) -> Pause:
    """The pause before the next call: a manager that is stopping answers before the time is over."""
    if deadline is not None and time.monotonic() + 0.05 >= deadline:
        raise NoAnswer(f"{now}, and the time is over")
    return Pause(0.05)


def get(c: Caller, id: str, deadline: Optional[float]) -> Steps[Job]:
    return _job_of((yield from c.call(Call("GET", _job_path(id)), deadline)))


def cancel(c: Caller, id: str, deadline: Optional[float]) -> Steps[Job]:
    return _job_of((yield from c.call(Call("POST", _job_path(id) + "/cancel"), deadline)))


def list_jobs(c: Caller, query: ListQuery, deadline: Optional[float]) -> Steps[Page]:
    r = yield from c.call(Call("GET", "/v1/jobs?" + urlencode(query.query())), deadline)
    jobs = _jobs_of(r)
    return Page(jobs, str(r.object().get("cursor") or ""))


def send(c: Caller, e: Event, deadline: Optional[float]) -> Steps[Sent]:
    key = e.idempotency_key or c.keys.next()
    body = {} if e.payload is None else {"payload": e.payload}
    call = Call("POST", "/v1/events/" + quote(e.name, safe=""), body, key=key, trace=e.traceparent)
    r = yield from c.call(call, deadline)
    v = r.object()
    try:
        return Sent(str(v["event"]), tuple(EventJob(str(j["id"]), str(j["function"])) for j in v["jobs"]), r.replayed)
    except (KeyError, TypeError) as e2:
        raise r.not_ours(f"no event: {e2!r}") from None


def start_batch(c: Caller, b: Batch, deadline: Optional[float]) -> Steps[BatchInfo]:
    body: dict[str, Any] = {"jobs": [s.json() for s in b.jobs]}
    if b.callback is not None:
        body["callback"] = b.callback.json()
    key = b.idempotency_key or c.keys.next()
    return _batch_of((yield from c.call(Call("POST", "/v1/batches", body, key=key, trace=b.traceparent), deadline)))


def get_batch(c: Caller, id: str, deadline: Optional[float]) -> Steps[BatchInfo]:
    return _batch_of((yield from c.call(Call("GET", "/v1/batches/" + quote(id, safe="")), deadline)))


def wait_batch(c: Caller, id: str, deadline: Optional[float]) -> Steps[BatchInfo]:
    while True:
        b = _batch_of((yield from c.call(_waiting("/v1/batches/" + quote(id, safe="")), deadline)))
        if b.pending == 0:
            return b
        yield _again(f"{b.pending} jobs of batch {id} have not ended", deadline)


def _batch_of(r: Reply) -> BatchInfo:
    v = r.object()
    try:
        counts = {name: int(v[name]) for name in ("total", "pending", "complete", "failed", "cancelled", "expired")}
        return BatchInfo(
            str(v["id"]), **counts, jobs=tuple(map(str, v.get("jobs", ()))), callback=str(v.get("callback", "")),
            created_at=parse_time(v.get("created_at")), finished_at=parse_time(v.get("finished_at")), replayed=r.replayed,
        )
    except (KeyError, TypeError, ValueError) as e:
        raise r.not_ours(f"no batch: {e!r}") from None


def subscription(c: Caller, method: str, event: str, function: str, deadline: Optional[float]) -> Steps[None]:
    path = f"/v1/events/{quote(event, safe='')}/subscriptions/{quote(function, safe='')}"
    r = yield from c.call(Call(method, path, {} if method == "PUT" else None), deadline)
    if r.object().get("function") != function:
        raise r.not_ours("no subscription")


def _jobs_of(r: Reply) -> list[Job]:
    jobs = r.object().get("jobs")
    if not isinstance(jobs, list):
        raise r.not_ours("no list of jobs")
    try:
        return [Job.parse(v) for v in jobs]
    except ValueError as e:
        raise r.not_ours(str(e)) from None


def claim(
    c: Caller, worker: str, functions: Sequence[str], limit: int, lease: float, wait: float, deadline: Optional[float]
) -> Steps[list[Job]]:
    body: dict[str, Any] = {"worker": worker, "limit": limit, "lease_ms": millis(lease)}
    if functions:
        body["functions"] = list(functions)
    if wait > 0:
        body["wait_ms"] = millis(wait)
    return _jobs_of((yield from c.call(Call("POST", "/v1/jobs/claim", body, wait=wait, once=True), deadline)))


def heartbeat(c: Caller, id: str, token: str, lease: Optional[float], deadline: Optional[float]) -> Steps[Beat]:
    body: dict[str, Any] = {"lease_token": token}
    if lease is not None:
        body["lease_ms"] = millis(lease)
    r = yield from c.call(Call("POST", _job_path(id) + "/heartbeat", body, once=True), deadline)
    v = r.object()
    left = v.get("expires_in_ms")
    if not isinstance(left, (int, float)) or left <= 0:
        raise r.not_ours("no lease")
    return Beat(v.get("cancelled") is True, left / 1000)


def finish_body(token: str, status: str, result: Any, error: str) -> dict[str, Any]:
    body: dict[str, Any] = {"lease_token": token, "status": status}
    if result is not None:
        body["result"] = result
    if error:
        body["error"] = error
    return body


def finish(c: Caller, id: str, body: dict[str, Any], deadline: Optional[float]) -> Steps[Job]:
    return _job_of((yield from c.call(Call("POST", _job_path(id) + "/finish", body), deadline)))


def finish_many(
    c: Caller, finishes: Sequence[dict[str, Any]], deadline: Optional[float]
) -> Steps[list[Optional[ManagerError]]]:
    """End up to 1000 jobs. The answer has an error, or None, for each."""
    r = yield from c.call(Call("POST", "/v1/jobs/finish", {"finishes": list(finishes)}), deadline)
    results = r.object().get("results")
    if not isinstance(results, list) or len(results) != len(finishes):
        raise r.not_ours(f"not {len(finishes)} results")
    out: list[Optional[ManagerError]] = []
    for v, f in zip(results, finishes):
        if not isinstance(v, dict) or v.get("id") != f["id"]:
            raise r.not_ours(f"a result that is not of job {f['id']}")
        p = v.get("problem")
        if isinstance(p, dict) and p.get("code"):
            out.append(problem(p, int(p.get("status") or 0)))
        elif v.get("state"):
            out.append(None)
        else:
            raise r.not_ours(f"no state of job {f['id']}")
    return out


def retry(
    c: Caller, id: str, token: str, delay: Optional[float], error: str, uncounted: bool, deadline: Optional[float]
) -> Steps[Job]:
    if not token:
        raise ValueError("lease_token: must be that of the job's lease")
    body: dict[str, Any] = {"lease_token": token}
    if delay is not None:
        body["delay_ms"] = millis(delay)
    if error:
        body["error"] = error
    if uncounted:
        body["uncounted"] = True
    return _job_of((yield from c.call(Call("POST", _job_path(id) + "/retry", body), deadline)))


def _reservation_of(r: Reply) -> Reservation:
    v = r.object()
    if v.get("state") not in ("reserved", "pending", "committed", "rejected", "released", "unknown", "none"):
        raise r.not_ours("no state of a key")
    try:
        answer = Answer.parse(v["result"]) if v.get("result") is not None else None
        return Reservation(v["state"], str(v.get("token") or ""), float(v.get("expires_in_ms") or 0) / 1000, answer)
    except (TypeError, ValueError) as e:
        raise r.not_ours(str(e)) from None


def _ledger(c: Caller, verb: str, body: dict[str, Any], wait: float, deadline: Optional[float]) -> Steps[Reservation]:
    call = Call("POST", "/v1/ledger/" + verb, {name: v for name, v in body.items() if v not in (None, "")}, wait=wait)
    return _reservation_of((yield from c.call(call, deadline)))


def reserve(
    c: Caller, key: str, scope: str, fingerprint: str, token: str, pending_ttl: Optional[float], wait: float,
    durability: str, deadline: Optional[float],
) -> Steps[Reservation]:
    # The same token in each attempt: a reservation whose answer was lost is found again.
    body = {"key": key, "scope": scope, "fingerprint": fingerprint, "token": token or secrets.token_hex(16), "durability": durability}
    ttl = None if pending_ttl is None else millis(pending_ttl)
    return (yield from _ledger(c, "reserve", dict(body, pending_ttl_ms=ttl, wait_ms=millis(wait)), wait, deadline))


def record(
    c: Caller, verb: str, key: str, scope: str, token: str, fingerprint: str, answer: Answer, ttl: Optional[float],
    durability: str, deadline: Optional[float],
) -> Steps[Reservation]:
    body = {"key": key, "scope": scope, "token": token, "fingerprint": fingerprint, "result": answer.json(), "durability": durability}
    return (yield from _ledger(c, verb, dict(body, ttl_ms=None if ttl is None else millis(ttl)), 0.0, deadline))


def renew(
    c: Caller, key: str, scope: str, token: str, pending_ttl: Optional[float], durability: str, deadline: Optional[float]
) -> Steps[Reservation]:
    body = {"key": key, "scope": scope, "token": token, "durability": durability}
    ttl = None if pending_ttl is None else millis(pending_ttl)
    return (yield from _ledger(c, "renew", dict(body, pending_ttl_ms=ttl), 0.0, deadline))


def release(
    c: Caller, key: str, scope: str, token: str, durability: str, deadline: Optional[float]
) -> Steps[Reservation]:
    body = {"key": key, "scope": scope, "token": token, "durability": durability}
    return (yield from _ledger(c, "release", body, 0.0, deadline))


def entry(c: Caller, key: str, scope: str, deadline: Optional[float]) -> Steps[dict[str, Any]]:
    path = "/v1/ledger/entries/" + quote(key, safe="") + ("?" + urlencode({"scope": scope}) if scope else "")
    r = yield from c.call(Call("GET", path), deadline)
    v = r.object()
    if not v.get("key") or not v.get("state"):
        raise r.not_ours("no entry")
    return v
