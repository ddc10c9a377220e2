"""Workers: claim jobs, run handlers, keep leases, and report.

    the handler                     the job
    returns                         is complete, with the result
    returns what is no JSON         has failed: it is done, and would be done again
    raises, also SystemExit         is queued again with backoff while attempts remain, else failed
    raises Permanent                has failed
    raises RetryAfter               is queued again after its time while attempts remain, else failed
    raises, and the job was         is cancelled
    cancelled
    returns or raises after the     is queued again with backoff while attempts remain, else failed, unless the report still comes
    job's timeout                   before the manager ends the attempt
    anything, and the lease         is with another worker already; nothing is reported
    was lost

Delivery is at least once: a worker that crashes, or that loses its lease, may have done the work already. So a handler must be
idempotent, with Job.id as the key. oncegate.testing tests that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Optional, Union

from ._errors import JobEnded
from ._run import Run, is_coroutine
from ._types import Job
from .aio import AsyncClient
from .client import Client


class Context:
    """What a handler learns of its worker besides the job."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._cause: Optional[JobEnded] = None

    @property
    def cause(self) -> Optional[JobEnded]:
        """Why the handler must end: JobCancelled, AttemptTimeout, LeaseLost or WorkerStopping; None while it may continue."""
        return self._cause

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Block until the handler must end, at most so many seconds, and return whether it must. Not for coroutines."""
        return self._ended.wait(seconds)

    def check(self) -> None:
        """Raise the cause if the handler must end."""
        if self._cause is not None:
            raise self._cause

    def _end(self, cause: JobEnded) -> bool:
        """Say that the handler must end. It returns whether that is news."""
        if self._cause is not None:
            return False
        self._cause = cause
        self._ended.set()
        return True


#: Does the work of one job. The result must be JSON of at most 1 MiB, nested at most 64 deep; None is no result.
Handler = Callable[[Job, Context], Any]
#: The same as a coroutine function.
AsyncHandler = Callable[[Job, Context], Awaitable[Any]]

_FUNCTION = re.compile(r"[A-Za-z0-9_.:~-]{1,128}")
_NAME = re.compile(r"[!-~]{1,128}")


class AsyncWorker:
    """Claims jobs and runs their handlers in an event loop.

    A coroutine function runs as a task, which is cancelled when it must end: Context.cause says why. Any other function runs in
    a thread, and looks at its Context. A handler that blocks the event loop stops the heartbeats of all jobs.
    """

    def __init__(
        self,
        client: Union[AsyncClient, Client],
        handlers: Mapping[str, Union[Handler, AsyncHandler]],
        *,
        name: Optional[str] = None,
        concurrency: int = 10,
        lease: float = 30.0,
        wait: float = 20.0,
        stop_timeout: float = 30.0,
        stop_grace: float = 5.0,
        logger: Optional[logging.Logger] = None,
    ) -> None:
        """Check the options; nothing happens until run. It raises ValueError. Times are seconds.

        handlers: by the functions of their jobs, 1 to 100.
        name: under which the worker claims, up to 128 visible ASCII characters. The default has host name, process id and a
            random part.
        concurrency: bounds the handlers that run at the same time: 1 to 1000. Up to four times as many more jobs wait for the
            manager to record how their handlers ended.
        lease: of the jobs, 0.1 s to 24 h. The worker extends it after every third of it. When the worker crashes, its jobs are
            delivered again after it. Only the manager ends a lease: while it cannot be reached, handlers continue, and the
            worker offers their outcomes for an hour and two leases. The client's max_attempts and
            max_retry_after do not bound this.
        wait: how long a claim waits while there are no jobs, at most 5 min.
        stop_timeout: how long running handlers continue after a stop, before they are asked to end.
        stop_grace: how long they then have to return.
        """
        if not 1 <= len(handlers) <= 100:
            raise ValueError(f"handlers for {len(handlers)} functions: must be 1 to 100")
        for function, handler in handlers.items():
            if not _FUNCTION.fullmatch(function) or function in (".", "..") or not callable(handler):
                raise ValueError(
                    f"handlers[{function[:140]!r}]: needs a handler, and a name of 1 to 128 letters, digits and _ . : - ~"
                )
        if not 1 <= concurrency <= 1000:
            raise ValueError(f"concurrency {concurrency}: must be 1 to 1000")
        for option, value, least, most in (
            ("lease", lease, 0.1, 86400.0),
            ("wait", wait, 0.001, 300.0),
            ("stop_timeout", stop_timeout, 0.001, 86400.0),
            ("stop_grace", stop_grace, 0.001, 86400.0),
        ):
            if not least <= value <= most:
                raise ValueError(f"{option} {value}: must be {least} to {most} seconds")
        #: The name under which the worker claims.
        self.name = name if name is not None else _worker_name()
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name[:140]!r}: must be up to 128 visible ASCII characters")
        self.handlers = dict(handlers)
        self.concurrency = concurrency
        self.lease = lease
        self.wait = wait
        self.stop_timeout = stop_timeout
        self.stop_grace = stop_grace
        self.logger = logger or logging.getLogger("oncegate.worker")
        self._client = client
        self._stopped = threading.Event()
        self._run: Optional[Run] = None
        self._lock = threading.Lock()

    async def run(self) -> None:
        """Claim and handle jobs until stop is called. Call it only once.

        Then it claims no more and waits for the running handlers: for stop_timeout undisturbed, and for stop_grace after they
        were asked to end. Jobs whose handlers give up, and jobs that a claim still brings, return to the queue, and their
        attempts do not count. It raises StopTimeout if handlers have not returned, or been reported, by then. To cancel run
        stops the worker as well.
        """
        with self._lock:
            if self._run is not None:
                raise RuntimeError("run must be called only once")
            caller, tls = self._client._caller.persistent(), self._client._tls
            self._run = Run(self, AsyncClient._of(caller, tls), AsyncClient._of(caller, tls), asyncio.get_running_loop())
            if self._stopped.is_set():
                self._run.stop.set()
        await self._run.main()

    def stop(self) -> None:
        """Let run end. It may be called from any thread, from a signal handler, and before run."""
        self._stopped.set()
        run = self._run
        if run is not None:
            try:
                run.loop.call_soon_threadsafe(run.stop.set)
            except RuntimeError:
                pass  # the loop is closed: run has ended

    def _context(self) -> Context:
        return Context()


class Worker:
    """Claims jobs and runs their handlers in threads. See AsyncWorker for the options."""

    def __init__(self, client: Client, handlers: Mapping[str, Handler], **options: Any) -> None:
        """Check the options; nothing happens until run. It raises ValueError."""
        for function, handler in handlers.items():
            if is_coroutine(handler):
                raise ValueError(f"handlers[{function!r}]: is a coroutine function; AsyncWorker runs these")
        self._async = AsyncWorker(client, handlers, **options)

    @property
    def name(self) -> str:
        """The name under which the worker claims."""
        return self._async.name

    def run(self, signals: Iterable[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        """Claim and handle jobs until stop is called or one of the signals comes (in the main thread only).

        See AsyncWorker.run for what a stop does, and what it raises.
        """
        loop = asyncio.new_event_loop()
        handled = []
        try:
            if threading.current_thread() is threading.main_thread():
                for number in signals:
                    loop.add_signal_handler(number, self.stop)
                    handled.append(number)
            loop.run_until_complete(self._async.run())
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def stop(self) -> None:
        """Let run end. It may be called from any thread, from a signal handler, and before run."""
        self._async.stop()


def _worker_name() -> str:
    """Make a name by which people can recognize the worker of a lease."""
    host = re.sub(r"[^!-~]", "_", socket.gethostname() or "unknown")[:80]
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"
