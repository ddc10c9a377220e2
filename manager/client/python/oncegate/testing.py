"""Tests that a worker's handler is idempotent, as at-least-once delivery requires."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Union

from ._outcome import Outcome
from ._types import Job, Lease
from .worker import AsyncHandler, Context, Handler

#: How often check_idempotent runs the handler.
RUNS = 3


def check_idempotent(handler: Union[Handler, AsyncHandler], payload: Any, state: Callable[[], Any]) -> None:
    """Run the handler RUNS times with the same job, like a manager that never learns how the earlier runs ended.

    It is the same id and payload, with a growing attempt. It raises AssertionError when a run raises an error, or when after a
    later run state returns another value, or the handler another result, than after the first. state reads what the handler
    has changed (rows, files, mails sent), and returns a copy of it.
    """
    try:
        encoded = json.dumps(payload, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise AssertionError(f"the payload cannot be encoded: {e}") from e
    created = datetime.now(timezone.utc)
    first: Any = None
    for run in range(1, RUNS + 1):
        # Each delivery is decoded separately: a handler must not rely on changes that it made to the job in memory.
        job = Job(
            id="oncegate-testing-1",
            function="oncegate.testing",
            state="active",
            payload=json.loads(encoded),
            attempt=run,
            max_attempts=25,
            created_at=created,
            run_at=created,
            started_at=datetime.now(timezone.utc),
            lease=Lease("oncegate.testing", f"oncegate-testing-{run}", 30.0),
        )
        try:
            result = _deliver(handler, job)
        except BaseException as e:
            raise AssertionError(f"run {run} of {RUNS} with the same job: {type(e).__name__}: {e}") from e
        now = state()
        if run == 1:
            first = (now, result)
        elif now != first[0]:
            raise AssertionError(f"run {run} changed the state that the first run left:\nfirst {first[0]!r}\nnow   {now!r}")
        elif result != first[1]:
            raise AssertionError(f"run {run} returned {result}, the first one {first[1]}")


def _deliver(handler: Union[Handler, AsyncHandler], job: Job) -> Any:
    """Run the handler and encode its result as a worker does."""
    result = handler(job, Context())
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    outcome = Outcome.of_result(result)
    if outcome.failure:
        raise ValueError(outcome.failure)
    return None if outcome.result is None else outcome.result.decode()
