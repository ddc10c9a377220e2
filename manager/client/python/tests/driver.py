"""The driver of the Python client for the cases of all languages (manager/internal/clienttest/languages says what it must do).

python3 driver.py threads|asyncio
"""

import asyncio
import faulthandler
import json
import logging
import os
import queue
import signal
import sys
import threading
from dataclasses import is_dataclass
from datetime import datetime

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from handlers import GoOn, check, handler, logged  # noqa: E402
from oncegate import (  # noqa: E402
    Answer,
    AsyncClient,
    AsyncWorker,
    Batch,
    Client,
    Dedup,
    Event,
    Keys,
    Limits,
    ListQuery,
    ManagerError,
    OncegateError,
    Rate,
    ScheduleSpec,
    Submission,
    Worker,
)


class Unsupported(Exception):
    pass


def seconds(a, name, default=None):
    return default if a.get(name) is None else a[name] / 1000


def submission(a):
    d = a.get("dedup")
    dedup = None if d is None else Dedup(d.get("strategy") or "", d.get("key") or "", seconds(d, "ttl_ms"), d.get("if_deduplicated") or "")
    text = {n: a.get(n) or "" for n in ("id", "key", "concurrency_key", "on_duplicate", "on_expiry", "idempotency_key", "traceparent")}
    return Submission(
        a["function"], a.get("payload"), priority=a.get("priority") or 0, delay=seconds(a, "delay_ms"),
        expires_in=seconds(a, "expires_in_ms"), timeout=seconds(a, "timeout_ms"),
        max_attempts=a.get("max_attempts"), dedup=dedup, **text,
    )


def failure(e):
    f = {"status": 0, "code": "", "detail": str(e), "temporary": False, "retry_after_ms": 0, "replayed": False}
    if isinstance(e, OncegateError):
        f["temporary"] = e.temporary
    if isinstance(e, ManagerError):
        f.update(status=e.status, code=e.code, retry_after_ms=round(e.retry_after * 1000), replayed=e.replayed)
    return f


def job(j):
    return dict(j.raw, replayed=j.replayed)


def batch(b):
    return {name: v for name, v in vars(b).items() if not name.endswith("_at")}


def reservation(r):
    out = {"state": r.state, "token": r.token, "expires_in_ms": round(r.expires_in * 1000)}
    if r.answer is not None:
        out["result"] = {"status": r.answer.status, "headers": r.answer.headers, "body": r.answer.body.decode(), "body_omitted": r.answer.body_omitted}
    return out


def plain(v):
    """A value of a dataclass as the API's JSON, without what does not apply."""
    if isinstance(v, (list, tuple)):
        return [plain(one) for one in v]
    if isinstance(v, datetime):
        return v.isoformat()
    if not is_dataclass(v):
        return v
    out = {}
    for name, value in vars(v).items():
        if isinstance(value, float):
            name, value = name + "_ms", round(value * 1000) or None
        out[name] = plain(value)
    return out


def options(a):
    o = {"failover": a.get("failover") or (), "token": a.get("token"), "max_attempts": a.get("max_attempts")}
    if a.get("client_id") is not None:
        o["keys"] = Keys(a["client_id"])
    for name in ("timeout", "backoff_base", "backoff_max", "max_retry_after"):
        if a.get(name + "_ms") is not None:
            o[name] = a[name + "_ms"] / 1000
    return o


def worker_options(a):
    o = {n: a[n] for n in ("name", "concurrency") if a.get(n) is not None}
    o.update({n: a[n + "_ms"] / 1000 for n in ("lease", "wait", "stop_timeout", "stop_grace") if a.get(n + "_ms") is not None})
    return o


SPEC = ("cron", "function", "time_zone", "payload", "priority", "max_attempts", "on_expiry", "missed", "overlap", "data_centers")
LIST = ("function", "state", "submitter", "key", "concurrency_key", "error", "error_text", "limit", "cursor")


def call(c, op, a, within):
    """Begin a call of a client: the answer or an awaitable, and what makes JSON of it."""
    of = {"within": within}
    for n in ("scope", "token", "fingerprint", "durability", "cursor", "function", "state"):
        a[n] = a.get(n) or ""
    if op == "submit":
        return c.submit(submission(a), **of), job
    if op == "send":
        e = Event(a["name"], a.get("payload"), a.get("idempotency_key") or "", a.get("traceparent") or "")
        return c.send(e, **of), lambda s: {"event": s.event, "jobs": [vars(j) for j in s.jobs], "replayed": s.replayed}
    if op == "start_batch":
        b = Batch([submission(s) for s in a["jobs"]], submission(a["callback"]) if a.get("callback") else None, a.get("idempotency_key") or "")
        return c.start_batch(b, **of), batch
    if op == "wait_batch":
        return c.wait_batch(a["id"], **of), batch
    if op in ("subscribe", "unsubscribe"):
        return getattr(c, op)(a["name"], a["function"], **of), lambda none: none
    if op == "submit_wait":
        return c.submit_wait(submission(a), **of), job
    if op == "submit_batch":
        return c.submit_batch([submission(i) for i in a["items"]], **of), lambda all: [
            {"idempotency_key": s.idempotency_key, **({"job": job(s.job)} if s.job else {"error": failure(s.error)})} for s in all
        ]
    if op == "put_schedule":
        durations = {n: seconds(a, n + "_ms") for n in ("expires_in", "timeout") if n + "_ms" in a}
        spec = ScheduleSpec(**{n: v for n, v in a.items() if n in SPEC}, **durations)
        return c.put_schedule(a["name"], spec, **of), plain
    if op in ("get_schedule", "pause_schedule", "resume_schedule", "delete_schedule"):
        return getattr(c, op)(a["name"], **of), plain
    if op in ("list_schedules", "functions"):
        page = c.list_functions if op == "functions" else c.list_schedules
        return page(limit=a.get("limit"), cursor=a["cursor"], **of), plain
    if op == "run_schedule":
        return c.run_schedule(a["name"], idempotency_key=a.get("idempotency_key") or "", **of), job
    if op == "set_limits":
        rate = Rate(a["rate"]["count"], a["rate"]["per_ms"] / 1000) if a.get("rate") else None
        return c.set_limits(a["function"], Limits(a.get("max_running"), a.get("max_running_per_key"), rate), **of), plain
    if op in ("wait", "get", "cancel"):
        return getattr(c, op)(a["id"], **of), job
    if op == "list":
        query = ListQuery(older_than=seconds(a, "older_than_ms"), newer_than=seconds(a, "newer_than_ms"), **{n: v for n, v in a.items() if v and n in LIST})
        return c.list_jobs(query, **of), lambda p: {"jobs": [job(j) for j in p.jobs], "cursor": p.cursor}
    if op == "claim":
        jobs = c.claim(
            a["worker"], a.get("functions") or (), limit=a.get("limit") or 1, lease=seconds(a, "lease_ms", 60.0),
            wait=seconds(a, "wait_ms", 0.0), **of,
        )
        return jobs, lambda all: [job(j) for j in all]
    if op == "heartbeat":
        beat = c.heartbeat(a["id"], a["lease_token"], seconds(a, "lease_ms"), **of)
        return beat, lambda b: {"cancelled": b.cancelled, "expires_in_ms": round(b.expires_in * 1000)}
    if op == "finish":
        return c.finish(a["id"], a["lease_token"], a["status"], result=a.get("result"), error=a.get("error") or "", **of), job
    if op == "retry":
        return c.retry(
            a["id"], a["lease_token"], delay=seconds(a, "delay_ms"), error=a.get("error") or "", uncounted=bool(a.get("uncounted")), **of
        ), job
    if op == "reserve":
        return c.reserve(
            a["key"], scope=a["scope"], fingerprint=a["fingerprint"], token=a["token"], pending_ttl=seconds(a, "pending_ttl_ms"),
            wait=seconds(a, "wait_ms", 0.0), durability=a["durability"], **of,
        ), reservation
    if op in ("commit", "reject"):
        r = a["result"]
        answer = Answer(r["status"], [tuple(h) for h in r.get("headers") or ()], (r.get("body") or "").encode(), bool(r.get("body_omitted")))
        more = {"scope": a["scope"], "fingerprint": a["fingerprint"], "durability": a["durability"]}
        return getattr(c, op)(a["key"], a["token"], answer, ttl=seconds(a, "ttl_ms"), **more, **of), reservation
    if op == "renew":
        return c.renew(a["key"], a["token"], scope=a["scope"], pending_ttl=seconds(a, "pending_ttl_ms"), durability=a["durability"], **of), reservation
    if op == "release":
        return c.release(a["key"], a["token"], scope=a["scope"], durability=a["durability"], **of), reservation
    if op == "entry":
        return c.entry(a["key"], scope=a["scope"], **of), lambda e: e
    raise Unsupported


def other(op, a):
    """Commands without a client."""
    if op == "keys":
        k = Keys(a["client_id"])
        return [k.next() for _ in range(a["n"])]
    if op == "open_keys":
        k = Keys.open(a["file"])
        return [k.next() for _ in range(a["n"])]
    if op == "check":
        check(a["handler"], a["payload"])
        return None
    raise Unsupported


OTHERS = ("keys", "open_keys", "check")


def answered(e):
    return {"unsupported": True} if isinstance(e, Unsupported) else {"error": failure(e)}


def write(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Threads:
    """Drives Client and Worker."""

    def __init__(self):
        self.client = self.worker = self.thread = self.go_on = self.ended_by = None

    def main(self):
        # A signal that another thread gets would not interrupt the one that reads, so one thread waits for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        lines = queue.Queue()

        def read():
            for line in sys.stdin:
                lines.put(line)
            lines.put(None)

        def wait():
            signal.sigwait({signal.SIGTERM})
            lines.put(None)

        for f in (read, wait):
            threading.Thread(target=f, daemon=True).start()
        while (line := lines.get()) is not None:
            c = json.loads(line)
            try:
                answer = {"ok": self.do(c["op"], c["args"], seconds(c, "within_ms"))}
            except Exception as e:
                answer = answered(e)
            write(answer)
        try:
            self.stop()
        except OncegateError as e:
            print(e, file=sys.stderr)
            return 1
        return 0

    def do(self, op, a, within):
        if op in OTHERS:
            return other(op, a)
        if op == "open":
            self.client = Client(a["url"], **options(a))
            return None
        if op == "work":
            return self.work(a)
        if op == "go_on":
            self.go_on.set()
            return None
        if op == "stop":
            return self.stop()
        value, form = call(self.client, op, a, within)
        return form(value)

    def work(self, a):
        self.go_on = GoOn()
        handlers = {f: logged(a["log"], handler(name, self.go_on)) for f, name in a["handlers"].items()}
        self.worker = worker = Worker(self.client, handlers, **worker_options(a))
        self.ended_by = None

        def run():
            try:
                worker.run()
            except BaseException as e:
                self.ended_by = e

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def stop(self):
        if self.worker is not None:
            self.worker.stop()
            self.thread.join()
            self.worker = None
            if self.ended_by is not None:
                raise self.ended_by


class Asyncio:
    """Drives AsyncClient and AsyncWorker."""

    def __init__(self):
        self.client = self.worker = self.task = self.go_on = None

    async def main(self):
        loop = asyncio.get_running_loop()
        lines = asyncio.Queue()

        def read():
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)

        threading.Thread(target=read, daemon=True).start()
        loop.add_signal_handler(signal.SIGTERM, lines.put_nowait, None)
        while (line := await lines.get()) is not None:
            c = json.loads(line)
            try:
                answer = {"ok": await self.do(c["op"], c["args"], seconds(c, "within_ms"))}
            except Exception as e:
                answer = answered(e)
            write(answer)
        try:
            await self.stop()
        except OncegateError as e:
            print(e, file=sys.stderr)
            return 1
        return 0

    async def do(self, op, a, within):
        if op in OTHERS:
            return await asyncio.get_running_loop().run_in_executor(None, other, op, a)
        if op == "open":
            self.client = AsyncClient(a["url"], **options(a))
            return None
        if op == "work":
            self.go_on = GoOn()
            handlers = {f: logged(a["log"], handler(name, self.go_on, coroutine=True), coroutine=True) for f, name in a["handlers"].items()}
            self.worker = AsyncWorker(self.client, handlers, **worker_options(a))
            self.task = asyncio.ensure_future(self.worker.run())
            return None
        if op == "go_on":
            self.go_on.set()
            return None
        if op == "stop":
            return await self.stop()
        value, form = call(self.client, op, a, within)
        return form(await value)

    async def stop(self):
        if self.worker is not None:
            self.worker.stop()
            task, self.worker = self.task, None
            await task


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    faulthandler.register(signal.SIGQUIT)
    if sys.argv[1] == "threads":
        status = Threads().main()
    else:
        status = asyncio.new_event_loop().run_until_complete(Asyncio().main())
    sys.stdout.flush()
    os._exit(status)  # the thread that reads the input may still do so
