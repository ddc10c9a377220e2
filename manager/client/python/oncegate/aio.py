"""The client for programs with asyncio."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, Optional, TypeVar

from . import _calls, _schedules
from ._core import Caller, Options, Pause, Steps
from ._keys import Keys
from ._net import AsyncNet
from ._schedules import FunctionPage, Limits, Schedule, SchedulePage, ScheduleSpec
from ._types import Answer, Batch, BatchInfo, Beat, Event, Job, ListQuery, Page, Reservation, Sent, Submission, Submitted

T = TypeVar("T")


class AsyncClient:
    """Calls a manager. It belongs to one event loop.

    Each call takes within, the seconds that it may last with all its repetitions; None is as long as it takes. When the time
    is over, it raises the error of the last attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        failover: Sequence[str] = (),
        token: Optional[str] = None,
        keys: Optional[Keys] = None,
        timeout: float = 15.0,
        backoff_base: float = 0.05,
        backoff_max: float = 5.0,
        max_retry_after: Optional[float] = None,
        max_attempts: Optional[int] = None,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        """Check the options. It does not connect, and raises ValueError. Times are seconds.

        url: of the manager, or of the gate in front of it, for example http://127.0.0.1:8090, or unix:PATH for its socket.
        failover: URLs of further managers that share the store with the first, at most 15. A call that does not reach a
            manager tries the next, without a pause until all were tried. The client then stays there.
        token: sent as a bearer token.
        keys: makes idempotency keys. The default has a random client id.
        timeout: how long one attempt waits for its answer, besides the call's wait, and then for each further part of it.
        backoff_base, backoff_max: of the pauses between attempts. The base is doubled with each attempt, up to the maximum;
            half of a pause is random. A longer Retry-After of the manager takes precedence.
        max_retry_after: a call that would have to wait longer raises the error instead.
        max_attempts: of one call; None for no bound.
        tls: for https; the default is ssl.create_default_context().
        """
        self._caller = Caller(
            Options(url, tuple(failover), token, keys, timeout, backoff_base, backoff_max, max_retry_after, max_attempts)
        )
        self._tls = tls
        self._net = AsyncNet(tls)

    @property
    def keys(self) -> Keys:
        """The generator of the client's idempotency keys."""
        return self._caller.keys

    async def submit(self, s: Submission, *, within: Optional[float] = None) -> Job:
        """Submit a job at most once: repeat the call with the same key until it has an answer.

        A ManagerError that is not temporary is the manager's refusal. After any other error it is unknown whether the job was
        enqueued, since an attempt may have arrived and its answer been lost. Repeating the same submission with the same
        idempotency_key finds out. A caller that may need that must set the key itself, for example to keys.next().
        """
        return await self._run(_calls.submit(self._caller, s, _calls.ends(within)))

    async def submit_batch(self, all: Sequence[Submission], *, within: Optional[float] = None) -> list[Submitted]:
        """Submit jobs at most once each, in as few requests as possible. Each is judged by itself, and has a key of its own.

        If it raises, it is unknown which of the jobs were enqueued. A caller that may need to find out must set the keys.
        """
        return await self._run(_calls.submit_batch(self._caller, all, _calls.ends(within)))

    async def submit_wait(self, s: Submission, *, within: Optional[float] = None) -> Job:
        """Submit a job, and wait until it is over: complete, failed, cancelled or expired.

        If only the wait fails, the error has the job. The caller may wait again by its id.
        """
        return await self._run(_calls.submit_wait(self._caller, s, _calls.ends(within)))

    async def send(self, e: Event, *, within: Optional[float] = None) -> Sent:
        """Send an event at most once. It becomes one job for each function that subscribes to it, in one transaction.

        A repetition with the same key enqueues nothing and gets the first call's answer, whatever subscribed in between. It
        raises what submit raises.
        """
        return await self._run(_calls.send(self._caller, e, _calls.ends(within)))

    async def start_batch(self, b: Batch, *, within: Optional[float] = None) -> BatchInfo:
        """Submit jobs together at most once, all of them or none, and a job that runs when all have ended.

        It raises what submit raises.
        """
        return await self._run(_calls.start_batch(self._caller, b, _calls.ends(within)))

    async def get_batch(self, id: str, *, within: Optional[float] = None) -> BatchInfo:
        """Return a batch, without the ids of its jobs."""
        return await self._run(_calls.get_batch(self._caller, id, _calls.ends(within)))

    async def wait_batch(self, id: str, *, within: Optional[float] = None) -> BatchInfo:
        """Return a batch once all of its jobs have ended."""
        return await self._run(_calls.wait_batch(self._caller, id, _calls.ends(within)))

    async def subscribe(self, event: str, function: str, *, within: Optional[float] = None) -> None:
        """Make each event of this name that is sent from now on a job of the function, until unsubscribe."""
        await self._run(_calls.subscription(self._caller, "PUT", event, function, _calls.ends(within)))

    async def unsubscribe(self, event: str, function: str, *, within: Optional[float] = None) -> None:
        """End a subscription, if there is one. Jobs that it has made stay."""
        await self._run(_calls.subscription(self._caller, "DELETE", event, function, _calls.ends(within)))

    async def wait(self, id: str, *, within: Optional[float] = None) -> Job:
        """Return the job once it is over."""
        return await self._run(_calls.wait(self._caller, id, _calls.ends(within)))

    async def get(self, id: str, *, within: Optional[float] = None) -> Job:
        """Return a job with its payload and result."""
        return await self._run(_calls.get(self._caller, id, _calls.ends(within)))

    async def cancel(self, id: str, *, within: Optional[float] = None) -> Job:
        """Keep a job from running, or ask its worker to stop."""
        return await self._run(_calls.cancel(self._caller, id, _calls.ends(within)))

    async def list_jobs(self, query: ListQuery = ListQuery(), *, within: Optional[float] = None) -> Page:
        """Return one page of jobs."""
        return await self._run(_calls.list_jobs(self._caller, query, _calls.ends(within)))

    async def put_schedule(self, name: str, spec: ScheduleSpec, *, within: Optional[float] = None) -> Schedule:
        """Make a schedule, or replace what it enqueues and when. A schedule that is paused stays so."""
        return await self._run(_schedules.schedule(self._caller, "PUT", name, "", spec.json(), _calls.ends(within)))

    async def get_schedule(self, name: str, *, within: Optional[float] = None) -> Schedule:
        """Return a schedule."""
        return await self._run(_schedules.schedule(self._caller, "GET", name, "", None, _calls.ends(within)))

    async def list_schedules(self, *, limit: Optional[int] = None, cursor: str = "", within: Optional[float] = None) -> SchedulePage:
        """Return one page of schedules, in order of their names. limit is 1 to 1000, and 100 if None."""
        return await self._run(_schedules.list_schedules(self._caller, limit, cursor, _calls.ends(within)))

    async def delete_schedule(self, name: str, *, within: Optional[float] = None) -> None:
        """Remove a schedule. Its jobs stay. NotFound after a repetition says that an earlier attempt removed it."""
        await self._run(_schedules.delete_schedule(self._caller, name, _calls.ends(within)))

    async def pause_schedule(self, name: str, *, within: Optional[float] = None) -> Schedule:
        """Stop a schedule."""
        return await self._run(_schedules.schedule(self._caller, "POST", name, "/pause", None, _calls.ends(within)))

    async def resume_schedule(self, name: str, *, within: Optional[float] = None) -> Schedule:
        """Start a paused schedule again, with the first instant from now on."""
        return await self._run(_schedules.schedule(self._caller, "POST", name, "/resume", None, _calls.ends(within)))

    async def run_schedule(self, name: str, *, idempotency_key: str = "", within: Optional[float] = None) -> Job:
        """Enqueue a schedule's job now. All calls with the same key enqueue one; an empty key is drawn, as by submit."""
        return await self._run(_schedules.run_schedule(self._caller, name, idempotency_key, _calls.ends(within)))

    async def list_functions(self, *, limit: Optional[int] = None, cursor: str = "", within: Optional[float] = None) -> FunctionPage:
        """Return one page of functions, with their limits. limit is 1 to 1000, and 100 if None."""
        return await self._run(_schedules.list_functions(self._caller, limit, cursor, _calls.ends(within)))

    async def set_limits(self, function: str, limits: Limits, *, within: Optional[float] = None) -> None:
        """Replace the limits of a function's jobs."""
        await self._run(_schedules.set_limits(self._caller, function, limits, _calls.ends(within)))

    async def claim(
        self,
        worker: str,
        functions: Sequence[str] = (),
        *,
        limit: int = 1,
        lease: float = 60.0,
        wait: float = 0.0,
        within: Optional[float] = None,
    ) -> list[Job]:
        """Lease jobs. It is not repeated, because a caller claims in a loop anyway."""
        return await self._run(_calls.claim(self._caller, worker, functions, limit, lease, wait, _calls.ends(within)))

    async def heartbeat(
        self, id: str, lease_token: str, lease: Optional[float] = None, *, within: Optional[float] = None
    ) -> Beat:
        """Extend a lease, by default to the claim's duration. It is not repeated: the next heartbeat serves as that."""
        return await self._run(_calls.heartbeat(self._caller, id, lease_token, lease, _calls.ends(within)))

    async def finish(
        self,
        id: str,
        lease_token: str,
        status: str = "complete",
        *,
        result: Any = None,
        error: str = "",
        within: Optional[float] = None,
    ) -> Job:
        """End a job as complete, failed or cancelled. A result of None is none."""
        body = _calls.finish_body(lease_token, status, result, error)
        return await self._run(_calls.finish(self._caller, id, body, _calls.ends(within)))

    async def retry(
        self,
        id: str,
        lease_token: str,
        *,
        delay: Optional[float] = None,
        error: str = "",
        uncounted: bool = False,
        within: Optional[float] = None,
    ) -> Job:
        """Put a worker's job back into the queue. Without a delay the manager chooses one. An uncounted delivery is no attempt."""
        return await self._run(_calls.retry(self._caller, id, lease_token, delay, error, uncounted, _calls.ends(within)))

    async def reserve(
        self,
        key: str,
        *,
        scope: str = "",
        fingerprint: str = "",
        token: str = "",
        pending_ttl: Optional[float] = None,
        wait: float = 0.0,
        durability: str = "",
        within: Optional[float] = None,
    ) -> Reservation:
        """Ask the ledger for the right to do a key's work once.

        If the state is reserved, do the work, and then commit, reject or release with the reservation's token. If it is
        committed or rejected, the work is done, with this answer. If it is pending, another attempt does it. OutcomeUnknown
        says that the work may have been done.

        fingerprint: digest of the request. The same key with another one raises FingerprintMismatch.
        token: names this attempt; drawn if empty. The same key and token twice is the same call.
        pending_ttl: seconds after which the outcome counts as unknown, if nothing renews the reservation.
        wait: seconds to wait for the end of another attempt.
        durability: how far the key is protected: local, region or global; local if empty. The later calls about
            the key must repeat it.
        """
        return await self._run(
            _calls.reserve(self._caller, key, scope, fingerprint, token, pending_ttl, wait, durability, _calls.ends(within))
        )

    async def commit(
        self,
        key: str,
        token: str,
        answer: Answer,
        *,
        scope: str = "",
        fingerprint: str = "",
        ttl: Optional[float] = None,
        durability: str = "",
        within: Optional[float] = None,
    ) -> Reservation:
        """Record the answer of work that ran. Fenced says that another attempt has the key by now."""
        return await self._run(
            _calls.record(self._caller, "commit", key, scope, token, fingerprint, answer, ttl, durability, _calls.ends(within))
        )

    async def reject(
        self,
        key: str,
        token: str,
        answer: Answer,
        *,
        scope: str = "",
        fingerprint: str = "",
        ttl: Optional[float] = None,
        durability: str = "",
        within: Optional[float] = None,
    ) -> Reservation:
        """Record the refusal of work."""
        return await self._run(
            _calls.record(self._caller, "reject", key, scope, token, fingerprint, answer, ttl, durability, _calls.ends(within))
        )

    async def renew(
        self,
        key: str,
        token: str,
        *,
        scope: str = "",
        pending_ttl: Optional[float] = None,
        durability: str = "",
        within: Optional[float] = None,
    ) -> Reservation:
        """Extend a reservation while the work runs."""
        return await self._run(_calls.renew(self._caller, key, scope, token, pending_ttl, durability, _calls.ends(within)))

    async def release(
        self, key: str, token: str, *, scope: str = "", durability: str = "", within: Optional[float] = None
    ) -> Reservation:
        """Give up a reservation whose work did not run."""
        return await self._run(_calls.release(self._caller, key, scope, token, durability, _calls.ends(within)))

    async def entry(self, key: str, *, scope: str = "", within: Optional[float] = None) -> dict[str, Any]:
        """Return the ledger's entry for a key, with the members of the API. NotFound says that there is none."""
        return await self._run(_calls.entry(self._caller, key, scope, _calls.ends(within)))

    def close(self) -> None:
        """Close the idle connections. The client may still be used."""
        self._net.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _run(self, steps: Steps[T], leave: Optional[asyncio.Event] = None) -> T:
        """Do what the steps of a call yield."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    answer = await self._net.exchange(step, leave)
                except Exception as e:
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            steps.close()

    @classmethod
    def _of(cls, caller: Caller, tls: Optional[ssl.SSLContext]) -> AsyncClient:
        """A client that makes the caller's calls over connections of its own."""
        c = cls.__new__(cls)
        c._caller, c._tls, c._net = caller, tls, AsyncNet(tls)
        return c
