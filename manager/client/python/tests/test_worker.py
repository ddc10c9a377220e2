"""What the cases of all languages do not show of workers and clients: what only Python has."""

import asyncio
import http.server
import json
import os
import ssl
import threading
import unittest

from oncegate import AsyncClient, AsyncWorker, Client, Context, Job, ManagerError, NoAnswer, StopTimeout, Submission, Worker
from oncegate.testing import check_idempotent


class Manager(http.server.ThreadingHTTPServer):
    """Answers claims with the jobs it is given, and remembers the reports."""

    daemon_threads = True

    def __init__(self, *jobs):
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs = [
            {"id": str(i), "function": f, "state": "active", "attempt": 1, "max_attempts": 1,
             "lease": {"worker": "w", "token": "t", "expires_in_ms": 60000}}
            for i, f in enumerate(jobs)
        ]
        self.reports, self.calls, self.lock, self.reported = {}, [], threading.Lock(), threading.Semaphore(0)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path, body):
        with self.lock:
            self.calls.append(path)
            if path.endswith("/claim"):
                jobs, self.jobs = self.jobs[: body["limit"]], self.jobs[body["limit"] :]
                return {"jobs": jobs}
            if path == "/v1/jobs/finish":
                for f in body["finishes"]:
                    self.reports[f["id"]] = f
                    self.reported.release()
                return {"results": [{"id": f["id"], "state": f["status"]} for f in body["finishes"]]}
            if path.endswith("/heartbeat"):
                return {"cancelled": False, "expires_in_ms": body["lease_ms"]}
            if path.endswith("/retry"):
                self.reports[path.split("/")[3]] = body
            return {"id": "a", "function": "f", "state": "queued"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        b = json.dumps(self.server.answer(self.path, body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(b)))
        self.end_headers()
        self.wfile.write(b)

    def log_message(self, *_):
        pass


class WorkerTest(unittest.TestCase):
    def manager(self, *jobs):
        m = Manager(*jobs)
        self.addCleanup(m.server_close)
        self.addCleanup(m.shutdown)
        return m

    def test_handlers_that_exit_end_only_their_job(self):
        def leave(*_):
            raise SystemExit(3)

        async def leave_later(*_):
            raise KeyboardInterrupt

        for exits in (leave, leave_later):
            m = self.manager("exit", "fine")

            async def main():
                w = AsyncWorker(AsyncClient(m.url), {"exit": exits, "fine": lambda *_: 1})
                run = asyncio.ensure_future(w.run())
                for _ in range(2):
                    await asyncio.get_running_loop().run_in_executor(None, m.reported.acquire)
                w.stop()
                await run

            asyncio.run(main())
            self.assertEqual((m.reports["0"]["status"], m.reports["1"]["status"]), ("failed", "complete"))

    def test_a_cancelled_run_stops_and_hands_back(self):
        m = self.manager("f")
        causes, began = [], threading.Event()

        async def main():
            async def handler(_, context):
                began.set()
                try:
                    await asyncio.sleep(3600)
                finally:
                    causes.append(context.cause.cause)

            w = AsyncWorker(AsyncClient(m.url), {"f": handler}, stop_timeout=0.001)
            run = asyncio.ensure_future(w.run())
            await asyncio.get_running_loop().run_in_executor(None, began.wait)
            run.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await run

        asyncio.run(main())
        self.assertEqual(causes, ["stopping"])
        self.assertEqual(m.reports["0"], {"lease_token": "t", "delay_ms": 0, "uncounted": True})

    def test_a_second_cancel_ends_a_run_at_once_and_leaves_nothing(self):
        m = self.manager("f")
        began, ended = threading.Event(), []

        async def main():
            async def handler(*_):
                began.set()
                try:
                    await asyncio.sleep(3600)
                finally:
                    ended.append(True)

            w = AsyncWorker(AsyncClient(m.url), {"f": handler}, lease=0.3, stop_timeout=3600)
            run = asyncio.ensure_future(w.run())
            await asyncio.get_running_loop().run_in_executor(None, began.wait)
            while not any(path.endswith("/heartbeat") for path in m.calls):
                await asyncio.sleep(0.001)
            run.cancel()
            await asyncio.sleep(0.01)
            self.assertFalse(run.done())
            run.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await run
            self.assertEqual(ended, [True])
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=5)
            self.assertEqual(asyncio.all_tasks(), {asyncio.current_task()})

        asyncio.run(main())

    def test_a_stop_before_the_run(self):
        m = self.manager("f")
        w = Worker(Client(m.url), {"f": lambda *_: None})
        w.stop()
        w.run()
        self.assertEqual(m.calls, [])

    def test_a_program_ends_without_handlers_that_do_not_return(self):
        m = self.manager("f")
        began, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def stubborn(*_):
            began.set()
            release.wait()

        w = Worker(Client(m.url), {"f": stubborn}, stop_timeout=0.001, stop_grace=0.001)
        threading.Thread(target=lambda: (began.wait(), w.stop()), daemon=True).start()
        with self.assertRaisesRegex(StopTimeout, "1 handlers did not return, and 0 outcomes"):
            w.run()

    def test_coroutines_need_an_async_worker(self):
        async def handler(*_):
            pass

        with self.assertRaisesRegex(ValueError, "AsyncWorker"):
            Worker(Client("http://127.0.0.1:1"), {"f": handler})

    def test_threads_share_a_client(self):
        m = self.manager()
        with Client(m.url) as c:
            threads = [threading.Thread(target=lambda: [c.submit(Submission("f")) for _ in range(20)]) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(len(m.calls), 160)
            self.assertLessEqual(len(c._net._idle), 8)

    def test_a_fork_does_not_use_its_parents_connections(self):
        m = self.manager()
        with Client(m.url) as c:
            c.submit(Submission("f"))
            self.assertEqual(len(c._net._idle), 1)
            child = os.fork()
            if child == 0:
                os._exit(len(c._net._idle))
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            c.submit(Submission("f"))
            self.assertEqual(len(c._net._idle), 1)

    def test_objects_may_be_coroutine_handlers(self):
        m = self.manager("f")

        class Send:
            async def __call__(self, *_):
                return "sent"

        async def main():
            w = AsyncWorker(AsyncClient(m.url), {"f": Send()})
            run = asyncio.ensure_future(w.run())
            await asyncio.get_running_loop().run_in_executor(None, m.reported.acquire)
            w.stop()
            await run

        asyncio.run(main())
        self.assertEqual(m.reports["0"]["result"], "sent")

    def test_an_error_of_a_wait_has_the_job(self):
        m = self.manager()
        with Client(m.url, max_attempts=1) as c, self.assertRaises(ManagerError) as raised:
            c.submit_wait(Submission("f"))
        self.assertEqual((raised.exception.status, raised.exception.job.id), (501, "a"))

    def test_tls_that_is_not_trusted_is_no_answer(self):
        m = self.manager()
        c = Client(m.url.replace("http", "https"), max_attempts=1, tls=ssl.create_default_context())
        with self.assertRaises(NoAnswer):
            c.submit(Submission("f"))


class ContextTest(unittest.TestCase):
    def test_a_context_without_an_end(self):
        c = Context()
        self.assertFalse(c.wait(0))
        self.assertIsNone(c.cause)
        c.check()


class CheckTest(unittest.TestCase):
    def test_deliveries_are_decoded_separately(self):
        seen = []

        def handler(j: Job, _):
            seen.append(list(j.payload))
            j.payload.append(1)

        check_idempotent(handler, [], lambda: None)
        self.assertEqual(seen, [[], [], []])

    def test_results_and_payloads_must_be_json(self):
        with self.assertRaisesRegex(AssertionError, "payload"):
            check_idempotent(lambda *_: None, object(), lambda: None)
        with self.assertRaisesRegex(AssertionError, "run 1 of 3.*cannot be reported"):
            check_idempotent(lambda *_: object(), 1, lambda: None)
        with self.assertRaisesRegex(AssertionError, "run 2 returned 2, the first one 1"):
            check_idempotent(lambda j, _: j.attempt, 1, lambda: None)
