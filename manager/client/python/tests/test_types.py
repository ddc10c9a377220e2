import json
import os
import tempfile
import threading
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

from oncegate import Answer, Dedup, Job, Keys, ManagerError, Permanent, RetryAfter, Submission
from oncegate import _calls
from oncegate._core import Call, Caller, Options, Pause
from oncegate._http import Response
from oncegate._outcome import Outcome
from oncegate._types import parse_time


class TypesTest(unittest.TestCase):
    def test_times(self):
        want = datetime(2026, 1, 2, 3, 4, 5, 123456, timezone.utc)
        for text in ("2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.123456789Z", "2026-01-02T05:04:05.123456+02:00"):
            self.assertEqual(parse_time(text), want)
        self.assertIsNone(parse_time(None))
        with self.assertRaises(ValueError):
            parse_time("yesterday")

    def test_a_pause_is_at_most_an_hour(self):
        caller = Caller(Options("http://a"))
        for asked, pause in ((60.0, 60.0), (86400.0, 3600.0)):
            self.assertEqual(caller.backoff(1, ManagerError(503, "quarantine", "", retry_after=asked)), pause)

    def test_pauses_grow_on_one_manager_whatever_others_there_are(self):
        caller = Caller(Options("http://a", failover=["http://b", "http://c"], backoff_base=1.0, backoff_max=1000.0))
        full = Response(503, {"content-type": "application/problem+json"}, b'{"status":503,"code":"ledger-full"}')
        steps, pauses = caller.call(Call("GET", "/")), []
        step = next(steps)
        while len(pauses) < 5:
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                step = next(steps)
            else:
                step = steps.send(full)
        self.assertTrue(all(2**n / 2 <= p <= 2**n for n, p in enumerate(pauses)), pauses)

    def test_submissions_leave_out_what_is_not_set(self):
        self.assertEqual(Submission("f").json(), {"function": "f"})
        at = datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1)))
        s = Submission("f", 0, id="a", key="k", priority=-1, run_at=at, max_attempts=0, dedup=Dedup(ttl=1.5), idempotency_key="i")
        self.assertEqual(
            s.json(),
            {"function": "f", "payload": 0, "id": "a", "key": "k", "priority": -1, "run_at": "2026-01-01T23:00:00.000000Z",
             "max_attempts": 0, "dedup": {"ttl_ms": 1500}},
        )
        self.assertEqual(Submission("f", "", delay=0).json(), {"function": "f", "payload": "", "delay_ms": 0})
        with self.assertRaises(ValueError):
            Submission("f", run_at=datetime(2026, 1, 2)).json()

    def test_only_jobs_are_jobs(self):
        j = Job.parse({"id": "a", "state": "complete", "lease": {"worker": "w", "expires_in_ms": 1500}, "new_member": 1})
        self.assertEqual((j.id, j.terminal, j.lease.expires_in, j.raw["new_member"]), ("a", True, 1.5, 1))
        for wrong in (None, [], {}, {"id": "a"}, {"id": 1, "state": "queued"}, {"id": "a", "state": "queued", "lease": {"worker": "w"}},
                      {"id": "a", "state": "queued", "created_at": "x"}, {"id": "a", "state": "queued", "errors": [1]}):
            with self.assertRaises(ValueError, msg=wrong):
                Job.parse(wrong)

    def test_answers_of_the_ledger(self):
        a = Answer(201, (("x-a", "b"),), b"\xff\x00")
        self.assertEqual(Answer.parse(a.json()), a)
        self.assertEqual(Answer.parse(Answer(201, body_omitted=True).json()), Answer(201, body_omitted=True))
        for wrong in (None, {}, {"status": "x"}, {"status": 200, "headers": [1]}):
            with self.assertRaises(ValueError, msg=wrong):
                Answer.parse(wrong)


    def test_calls_about_a_key_repeat_what_the_reservation_said(self):
        caller, a = Caller(Options("http://a")), Answer(200)
        said = {"key": "k", "scope": "s", "token": "t", "durability": "global"}
        for steps, more in (
            (_calls.reserve(caller, "k", "s", "f", "t", None, 0.0, "global", None), {"fingerprint": "f", "wait_ms": 0}),
            (_calls.record(caller, "commit", "k", "s", "t", "f", a, 1.5, "global", None), {"fingerprint": "f", "ttl_ms": 1500, "result": a.json()}),
            (_calls.renew(caller, "k", "s", "t", 2.0, "global", None), {"pending_ttl_ms": 2000}),
            (_calls.release(caller, "k", "s", "t", "global", None), {}),
        ):
            self.assertEqual(json.loads(next(steps).data.partition(b"\r\n\r\n")[2]), dict(said, **more))


class KeysTest(unittest.TestCase):
    def test_threads_never_get_the_same_key(self):
        keys, got = Keys("a"), []
        threads = [threading.Thread(target=lambda: got.extend([keys.next() for _ in range(500)])) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(set(got)), 4000)

    def test_a_fork_never_gets_the_same_key(self):
        keys = Keys("a")
        keys.next()
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(sink, keys.next().encode())
            os._exit(0)
        os.waitpid(child, 0)
        theirs = os.read(source, 1000).decode()
        os.close(source), os.close(sink)
        self.assertNotEqual(theirs.split(":")[2], keys.next().split(":")[2])

    def test_programs_that_start_together_get_one_id(self):
        with tempfile.TemporaryDirectory() as folder:
            file, ids = Path(folder) / "state" / "id", []
            threads = [threading.Thread(target=lambda: ids.append(Keys.open(file).client_id)) for _ in range(16)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual((len(ids), len(set(ids))), (16, 1))


def error_of(raiser):
    try:
        raiser()
    except BaseException as e:
        return e


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class OutcomeTest(unittest.TestCase):
    def test_results(self):
        self.assertEqual(Outcome.of_result(None), Outcome())
        self.assertEqual(Outcome.of_result({"a": [1, "ü"]}).result, '{"a":[1,"ü"]}'.encode())
        self.assertEqual(Outcome.of_result("ü\ud800").result, '"ü\\ud800"'.encode())
        self.assertEqual(len(Outcome.of_result("ü" * ((1 << 19) - 1)).result), 1 << 20)
        for value in (object(), float("nan"), {1j: 1}, "x" * (1 << 20), "ü" * (1 << 19), [0] * 600_000):
            o = Outcome.of_result(value)
            self.assertTrue(o.done and o.result is None and o.failure.startswith("the work is done"), o)

    def test_an_awaitable_is_no_result(self):
        async def later():
            pass

        o = Outcome.of_result(later())
        self.assertTrue("no coroutine function" in o.failure and not o.done, o)

    def test_errors(self):
        def wrapped():
            try:
                raise Permanent("never")
            except Permanent as e:
                raise RuntimeError("outer") from e

        for raiser, failure, permanent, after in (
            (lambda: (_ for _ in ()).throw(KeyError("a")), "KeyError: 'a'\n", False, None),
            (lambda: (_ for _ in ()).throw(ValueError()), "ValueError, an error without a text\n", False, None),
            (lambda: (_ for _ in ()).throw(SystemExit(3)), "SystemExit: 3\n", False, None),
            (lambda: (_ for _ in ()).throw(RetryAfter("soon", -1)), "soon", False, 0.0),
            (lambda: (_ for _ in ()).throw(RetryAfter("later", float("inf"))), "later", False, 366 * 86400.0),
            (lambda: (_ for _ in ()).throw(RetryAfter("soon", float("nan"))), "soon", False, 0.0),
            (lambda: (_ for _ in ()).throw(Unprintable()), "Unprintable, whose text cannot be had: RuntimeError", False, None),
            (wrapped, "RuntimeError: outer\n", True, None),
        ):
            o = Outcome.of_error(error_of(raiser))
            self.assertEqual((o.failure[: len(failure)], o.permanent, o.after), (failure, permanent, after))

    def test_texts_are_bounded_and_valid(self):
        o = Outcome.of_error(Permanent("ü" * 100_000))
        self.assertTrue(0 < len(o.failure.encode()) <= 32 << 10 and set(o.failure) == {"ü"})
        self.assertEqual(Outcome.of_error(Permanent("a\ud800")).failure, "a?")
