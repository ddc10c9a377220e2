"""One run of a worker."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Optional

from . import _calls
from ._core import unreachable
from ._errors import (
    AttemptTimeout,
    Conflict,
    Fenced,
    InvalidRequest,
    JobCancelled,
    JobEnded,
    LeaseLost,
    ManagerError,
    NoAnswer,
    NotFound,
    OncegateError,
    StopTimeout,
    TooLarge,
    WorkerStopping,
)
from ._outcome import NOT_REPORTABLE, Outcome, cut
from ._types import Job
from .aio import AsyncClient

if TYPE_CHECKING:
    from .worker import AsyncWorker, Context

# How many times as many jobs as there may be handlers wait for their outcome to be recorded.
_REPORTING = 4
# How long a claim waits for its answer after the worker was stopped.
_LEAVE = 2.0
# Bounds of the finishes that go together.
_BATCH = 500
_BATCH_BYTES = 256 << 10


class Run:
    """A worker at work. It belongs to one event loop."""

    def __init__(self, worker: AsyncWorker, client: AsyncClient, claims: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self._w = worker
        self._log = worker.logger
        self._client = client
        self._claims = claims  # its connections carry claims only: to leave one ends its connection
        self.loop = loop
        self.stop = asyncio.Event()
        self._slots = asyncio.Semaphore(worker.concurrency)
        self._reporting = asyncio.Semaphore(_REPORTING * worker.concurrency)
        self._handling = 0
        self._recording = 0
        self._jobs: set[asyncio.Task[None]] = set()
        self._contexts: set[Context] = set()
        self._tasks: dict[Context, asyncio.Task[Any]] = {}  # of coroutine handlers
        self._finishes: asyncio.Queue[tuple[dict[str, Any], int, asyncio.Future[Optional[OncegateError]]]] = asyncio.Queue()
        self._lost = False  # whether the manager cannot be reached
        self._changed = 0.0
        self._ended = False
        self._last: dict[str, str] = {}  # error that was logged last, by kind of call

    async def main(self) -> None:
        """See AsyncWorker.run."""
        claimer = asyncio.ensure_future(self._claim_loop())
        finisher = asyncio.ensure_future(self._finish_loop())
        cancelled = False
        try:
            try:
                await self.stop.wait()
            except asyncio.CancelledError:
                cancelled = True
                self.stop.set()
            await self._wait_for_end(claimer)
        finally:
            self._ended = True  # a cancel alone may be lost, before Python 3.12, where the task waits with a timeout
            for task in (claimer, finisher):
                task.cancel()
            for task in self._jobs:  # none, unless run was cancelled again or handlers do not return
                task.cancel()
            await asyncio.gather(claimer, finisher, *self._jobs, return_exceptions=True)
            self._client.close()
            self._claims.close()
        if cancelled:
            raise asyncio.CancelledError

    async def _wait_for_end(self, claimer: asyncio.Future[None]) -> None:
        if await self._all_ended(claimer, self._w.stop_timeout):
            return
        for ctx in list(self._contexts):
            self._end(ctx, WorkerStopping())
        if not await self._all_ended(claimer, self._w.stop_grace):
            raise StopTimeout(
                f"worker {self._w.name} stopped, but {self._handling} handlers did not return, "
                f"and {self._recording} outcomes were not recorded"
            )

    async def _all_ended(self, claimer: asyncio.Future[None], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while pending := {t for t in (claimer, *self._jobs) if not t.done()}:
            await asyncio.wait(pending, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED)
            if time.monotonic() >= until:
                return all(t.done() for t in (claimer, *self._jobs))
        return True

    # --- claims -------------------------------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        """Claim as many jobs as there are free slots, and start them, until the stop. It starts what its last claim brings."""
        failures = early = 0
        while not self.stop.is_set():
            free = await self._take_slots()
            if free == 0:
                return
            asked, jobs, error = time.monotonic(), [], None
            try:
                jobs = (await self._claim(free))[:free]
            except OncegateError as e:
                error = e
            finally:
                for _ in range(free - len(jobs)):
                    self._slots.release()
            for j in jobs:
                task = asyncio.ensure_future(self._work(j))
                self._jobs.add(task)
                task.add_done_callback(self._jobs.discard)
            if error is None:
                self._met(asked, None, "claim")
                failures = 0
                if jobs or time.monotonic() - asked > self._w.wait / 2:
                    early = 0
                    continue
                # A manager that is stopping answers claims immediately, and must not be asked continuously.
                early += 1
                await self._rest(self._client._caller.backoff(early))
            elif not self.stop.is_set():
                failures += 1
                self._met(asked, error, "claim")
                await self._rest(self._client._caller.backoff(failures, error))

    async def _take_slots(self) -> int:
        """Wait for a free slot, and take all there are. 0 says that the worker was stopped."""
        stopped = asyncio.ensure_future(self.stop.wait())
        first = asyncio.ensure_future(self._slots.acquire())
        await asyncio.wait({stopped, first}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not first.done():
            first.cancel()
            try:
                await first
            except asyncio.CancelledError:
                return 0
        await asyncio.sleep(0)  # other handlers may be returning right now
        free = 1
        while not self._slots.locked() and free < self._w.concurrency:
            await self._slots.acquire()
            free += 1
        if self.stop.is_set():
            for _ in range(free):
                self._slots.release()
            return 0
        return free

    async def _rest(self, seconds: float) -> None:
        """Wait, but not beyond the stop."""
        try:
            await asyncio.wait_for(self.stop.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    async def _claim(self, limit: int) -> list[Job]:
        """Ask for jobs, and take the answer that is on its way when the worker is stopped.

        A request that is cancelled loses the jobs that the manager has just leased to it. The worker announces that it leaves,
        and the manager answers immediately, with the jobs that are leased or with none.
        """
        w = self._w
        steps = _calls.claim(self._claims._caller, w.name, sorted(w.handlers), limit, w.lease, w.wait, None)
        asking = asyncio.ensure_future(self._claims._run(steps, self.stop))
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await asyncio.wait({asking}, timeout=_LEAVE)
            if not asking.done():
                raise NoAnswer("the claim had no answer before the worker's end")
            return asking.result()
        finally:
            stopped.cancel()
            asking.cancel()

    # --- a job --------------------------------------------------------------------------------------------------------

    async def _work(self, j: Job) -> None:
        """Handle a job and report it. It holds a slot, and after the handler returned a place among the reports."""
        slot, beats = True, None
        try:
            if j.lease is None or not j.lease.token:
                self._log.error("the manager sent job %s without a lease", j.id)
                return
            if self.stop.is_set():
                await self._hand_back(j, self._report_end())
                return
            ctx = self._w._context()
            beats = _Beats(self, j, ctx)
            self._contexts.add(ctx)
            timer = self.loop.call_later(j.timeout, self._end, ctx, AttemptTimeout()) if j.timeout > 0 else None
            self._handling += 1
            try:
                outcome = await self._call(j, ctx)
            finally:
                self._handling -= 1
                self._contexts.discard(ctx)
                if timer is not None:
                    timer.cancel()
            if isinstance(ctx.cause, LeaseLost):
                self._log.warning("the lease of job %s of %s was lost: the outcome is not reported", j.id, j.function)
                return
            async with self._reporting:  # then the next handler may run
                self._recording += 1
                self._slots.release()
                slot = False
                try:
                    await self._report(j, ctx, outcome)
                finally:
                    self._recording -= 1
        finally:
            if beats is not None:
                beats.stop()
            if slot:
                self._slots.release()

    def _end(self, ctx: Context, cause: JobEnded) -> None:
        """Ask a handler to end."""
        if ctx._end(cause) and (task := self._tasks.get(ctx)) is not None:
            task.cancel()

    async def _call(self, j: Job, ctx: Context) -> Outcome:
        handler = self._w.handlers.get(j.function)
        if handler is None:
            return Outcome(failure=f"worker {self._w.name} has no handler for {j.function}")
        if not is_coroutine(handler):
            return await self._call_in_thread(handler, j, ctx)
        return await self._call_as_task(handler, j, ctx)

    async def _call_as_task(self, handler: Any, j: Job, ctx: Context) -> Outcome:
        async def guarded() -> Outcome:
            # Whatever the handler raises is this job's failure, SystemExit included.
            try:
                return Outcome.of_result(await handler(j, ctx))
            except asyncio.CancelledError as e:
                return Outcome.of_error(ctx.cause or e)
            except BaseException as e:
                return Outcome.of_error(e)

        task = asyncio.ensure_future(guarded())
        self._tasks[ctx] = task
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # where the worker ends without waiting for it
            del self._tasks[ctx]
        if task.cancelled():  # before its first step
            return Outcome.of_error(ctx.cause or asyncio.CancelledError())
        return task.result()

    async def _call_in_thread(self, handler: Any, j: Job, ctx: Context) -> Outcome:
        done: asyncio.Future[Outcome] = self.loop.create_future()

        def returned(o: Outcome) -> None:
            if not done.done():
                done.set_result(o)

        def run() -> None:
            try:
                o = Outcome.of_result(handler(j, ctx))
            except BaseException as e:
                o = Outcome.of_error(e)
            try:
                self.loop.call_soon_threadsafe(returned, o)
            except RuntimeError:
                pass  # the loop is closed: the worker ended without this handler

        # Not of an executor: a process waits for those threads at its end, and a handler may never return.
        threading.Thread(target=run, name=f"oncegate {j.function}", daemon=True).start()
        return await done

    # --- reports ------------------------------------------------------------------------------------------------------

    def _report_end(self) -> float:
        """When a report with its repetitions ends. An outage of the manager does not count for leases, so that is long."""
        return time.monotonic() + 3600 + 2 * self._w.lease

    async def _report(self, j: Job, ctx: Context, o: Outcome) -> None:
        """Send the manager how a handler ended, until it answers."""
        assert j.lease is not None
        until, token = self._report_end(), j.lease.token
        status = "failed"
        if not o.failure:
            status = "complete"
        elif o.done or o.permanent:
            if not o.done and isinstance(ctx.cause, JobCancelled):
                status = "cancelled"
        elif isinstance(ctx.cause, JobCancelled):
            status = "cancelled"
        elif isinstance(ctx.cause, WorkerStopping):  # nothing is wrong with the job
            await self._hand_back(j, until)
            return
        elif j.attempt < j.max_attempts:
            steps = _calls.retry(self._client._caller, j.id, token, o.after, o.failure, False, until)
            try:
                await self._client._run(steps)
                return
            except (Conflict, InvalidRequest):
                pass  # no attempts are left
            except OncegateError as e:
                self._reported(j, "retry", e)
                return
        error = await self._finish(j, token, status, o.result, o.failure, until)
        if o.result is not None and isinstance(error, (InvalidRequest, TooLarge)):
            # For example nested too deep. The manager will never accept it, and without a report the work would run again.
            status = "failed"
            error = await self._finish(j, token, status, None, cut(f"{NOT_REPORTABLE}: {error}"), until)
        self._reported(j, status, error)

    async def _hand_back(self, j: Job, until: float) -> None:
        """Let another worker have the job immediately, as if it had not been claimed."""
        assert j.lease is not None
        try:
            await self._client._run(_calls.retry(self._client._caller, j.id, j.lease.token, 0.0, "", True, until))
        except OncegateError as e:
            self._reported(j, "hand back", e)

    def _reported(self, j: Job, what: str, error: Optional[OncegateError]) -> None:
        if isinstance(error, (Fenced, NotFound)):
            self._log.warning("the lease of job %s of %s was lost before the report (%s)", j.id, j.function, what)
        elif error is not None:
            self._log.error(
                "the report of job %s of %s failed (%s); it comes back when its lease runs out: %s", j.id, j.function, what, error
            )

    async def _finish(
        self, j: Job, token: str, status: str, result: Optional[bytes], failure: str, until: float
    ) -> Optional[OncegateError]:
        body = _calls.finish_body(token, status, None if result is None else json.loads(result), failure)
        size = len(result or b"") + len(failure)
        if size > _BATCH_BYTES // 4:
            return await self._finish_one(dict(body, id=j.id), until)
        done: asyncio.Future[Optional[OncegateError]] = self.loop.create_future()
        self._finishes.put_nowait((dict(body, id=j.id), size, done))
        return await done

    async def _finish_one(self, body: dict[str, Any], until: float) -> Optional[OncegateError]:
        alone = dict(body)
        try:
            await self._client._run(_calls.finish(self._client._caller, alone.pop("id"), alone, until))
            return None
        except OncegateError as e:
            return e

    async def _finish_loop(self) -> None:
        """Send finishes together: while one request is under way, those that come wait for the next."""
        while not self._ended:
            batch = [await self._finishes.get()]
            await asyncio.sleep(0)  # other handlers may be returning right now
            size = batch[0][1]
            while len(batch) < _BATCH and size < _BATCH_BYTES and not self._finishes.empty():
                batch.append(self._finishes.get_nowait())
                size += batch[-1][1]
            until = self._report_end()
            errors: list[Optional[ManagerError]] = [None] * len(batch)
            apart: Optional[OncegateError] = None
            try:
                errors = await self._client._run(_calls.finish_many(self._client._caller, [b for b, _, _ in batch], until))
            except OncegateError as e:
                apart = e
            for (body, _, done), own in zip(batch, errors):
                result: Optional[OncegateError] = own if apart is None else apart
                # One of them may have caused it: the others must not suffer.
                if isinstance(apart, (InvalidRequest, TooLarge)) or own is not None and own.temporary:
                    result = await self._finish_one(body, until)
                if not done.done():
                    done.set_result(result)

    # --- the log ------------------------------------------------------------------------------------------------------

    def _met(self, sent: float, error: Optional[OncegateError], call: str) -> None:
        """Log how a call ended that is made again and again.

        Once when the manager cannot be reached, once when it answers again, and any other error when it is not the last one.
        """
        lost = unreachable(error)
        if lost != self._lost and sent >= self._changed:  # a call from before the change is no news
            was, self._lost, self._changed = self._changed, lost, time.monotonic()
            if lost:
                self._log.warning("worker %s cannot reach the manager, trying again: %s", self._w.name, error)
            else:
                self._log.info("the manager answers worker %s again after %.3f s", self._w.name, self._changed - was)
        if lost:
            return
        text = "" if error is None else str(error)
        if text and text != self._last.get(call):
            self._log.warning("a %s of worker %s failed, trying again: %s", call, self._w.name, text)
        self._last[call] = text


def is_coroutine(handler: Any) -> bool:
    """Whether a handler is a coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))


class _Beats:
    """Sends heartbeats for one job until it is stopped. Its task starts with the first beat, so short jobs need none.

    It ends the job's handler when the manager says that the job is cancelled or the lease lost. Only the manager knows: while it
    cannot be reached, its time may stand still for leases, so heartbeats without an answer end nothing.
    """

    def __init__(self, run: Run, j: Job, ctx: Context) -> None:
        self._run, self._job, self._ctx = run, j, ctx
        self._task: Optional[asyncio.Task[None]] = None
        self._stopped = False
        self._every = run._w.lease / 3
        self._timer = run.loop.call_later(self._every, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        run, j, lease = self._run, self._job, self._run._w.lease
        assert j.lease is not None
        while not self._stopped:
            sent, pause = time.monotonic(), self._every
            error: Optional[OncegateError] = None
            try:
                steps = _calls.heartbeat(run._client._caller, j.id, j.lease.token, lease, sent + lease / 3)
                beat = await run._client._run(steps)
                if beat.cancelled:
                    run._end(self._ctx, JobCancelled())
            except Fenced:
                run._end(self._ctx, LeaseLost())
                return
            except OncegateError as e:
                error, pause = e, max(self._every / 8, 0.001)
            run._met(sent, error, "heartbeat")
            await asyncio.sleep(pause)

    def stop(self) -> None:
        """End the heartbeats."""
        self._stopped = True
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
