"""The handlers of the driver, by name: as functions and as coroutine functions."""

import asyncio
import json
import os
import threading

from oncegate import OncegateError, Permanent, RetryAfter
from oncegate.testing import check_idempotent


class GoOn(threading.Event):
    """Set by the command go_on."""


def cause_of(context):
    return context.cause.cause if context.cause else ""


def nested(n):
    value = []
    for _ in range(n - 1):
        value = [value]
    return value


def fail_once(j, _):
    if j.attempt == 1:
        raise ValueError("not yet")
    return "now"


def retry_after(j, _):
    if j.attempt == 1:
        raise RetryAfter("soon", j.payload / 1000)
    return "later"


def raising(make):
    def handler(j, _):
        raise make(j)

    return handler


def permanent(j, _):
    try:
        raise Permanent("never")
    except Permanent as e:
        raise RuntimeError("wrapped: never") from e


def crash(*_):
    raise KeyError("oh no")


# Those that wait for nothing.
PLAIN = {
    "echo": lambda j, _: j.payload,
    "nothing": lambda *_: None,
    "large": lambda j, _: "x" * j.payload,
    "umlauts": lambda j, _: "ü" * j.payload,
    "no_json": lambda *_: object(),
    "deep": lambda *_: nested(99),
    "fail": raising(lambda j: ValueError(f"no {j.attempt}")),
    "fail_once": fail_once,
    "permanent": permanent,
    "retry_after": retry_after,
    "crash": crash,
    "no_text": raising(lambda _: ValueError()),
    "endless": raising(lambda _: Permanent("ü" * 100_000)),
}


def waiting(name, go_on):
    def wait(_, context):
        while not go_on.is_set():
            if context.wait(0.002):
                raise OncegateError(cause_of(context))
        return "done"

    def stubborn(*_):
        go_on.wait()
        return "done"

    def finish_anyway(_, context):
        context.wait()
        return cause_of(context)

    def sleep(j, context):
        if context.wait(j.payload / 1000):
            context.check()
        return "done"

    return {"wait": wait, "stubborn": stubborn, "finish_anyway": finish_anyway, "sleep": sleep}[name]


def waiting_coroutine(name, go_on):
    async def wait(*_):
        while not go_on.is_set():
            await asyncio.sleep(0.002)
        return "done"

    async def stubborn(*_):
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.002)
            except asyncio.CancelledError:
                pass
        return "done"

    async def finish_anyway(_, context):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return cause_of(context)

    async def sleep(j, _):
        await asyncio.sleep(j.payload / 1000)
        return "done"

    return {"wait": wait, "stubborn": stubborn, "finish_anyway": finish_anyway, "sleep": sleep}[name]


def handler(name, go_on, coroutine=False):
    """Return the handler of a name."""
    if name not in PLAIN:
        return (waiting_coroutine if coroutine else waiting)(name, go_on)
    plain = PLAIN[name]
    if not coroutine:
        return plain

    async def as_coroutine(j, context):
        return plain(j, context)

    return as_coroutine


def logged(log, h, coroutine=False):
    """Write a handler's begin and end to the log."""

    def write(event):
        f = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        os.write(f, (json.dumps(event) + "\n").encode())
        os.close(f)

    def begin(j):
        write({"event": "begin", "job": j.id, "attempt": j.attempt})

    def end(j, context):
        write({"event": "end", "job": j.id, "attempt": j.attempt, "cause": cause_of(context)})

    def function(j, context):
        begin(j)
        try:
            return h(j, context)
        finally:
            end(j, context)

    async def coroutine_function(j, context):
        begin(j)
        try:
            return await h(j, context)
        finally:
            end(j, context)

    return coroutine_function if coroutine else function


def check(name, payload):
    """Test one of the handlers that are to be idempotent."""
    done, seen = [], set()

    def once(j, _):
        if j.id not in seen:
            seen.add(j.id)
            done.append(1)
        return len(done)

    def twice(*_):
        done.append(1)

    async def once_later(j, context):
        return once(j, context)

    handlers = {"once": once, "twice": twice, "fail": PLAIN["fail"]}
    check_idempotent(handlers[name], payload, lambda: len(done))
    if name == "once":
        check_idempotent(once_later, payload, lambda: len(done))
