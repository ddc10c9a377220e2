import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { JobTimeoutError, LeaseLostError, Permanent, RetryAfter, WorkerStoppingError, type Handler, type WorkerOptions } from "../lib/index.js";
import { cut, outcomeOf } from "../lib/outcome.js";
import { idempotent } from "../lib/handlertest.js";
import { aJob, eventually, Fake, problem, type Asked, type Told } from "./fake.js";

/** A job that is leased. */
function leased(id: string, more: object = {}): object {
	const lease = { worker: "w", token: `token-${id}`, expires_in_ms: 30_000 };
	return { ...aJob().body, id, state: "active", attempt: 1, payload: id, lease, ...more };
}

/** A manager that hands out the given jobs, one claim each, and then holds claims until the worker leaves. */
function queue(jobs: object[], answer: (asked: Asked) => Told | Promise<Told> = () => ({ ...aJob(), status: 200 })): Fake["answer"] {
	const waiting = [...jobs];
	return async (asked) => {
		if (asked.path === "/v1/jobs/finish") {
			return { body: { results: asked.body.finishes.map((f: any) => ({ id: f.id, state: f.status })) } };
		}
		if (asked.path !== "/v1/jobs/claim") return answer(asked);
		const next = waiting.splice(0, 1);
		if (next.length === 0) await asked.left;
		return { body: { jobs: next } };
	};
}

/** Runs a worker until the returned function stops it. */
function work(t: TestContext, fake: Fake, handler: Handler, o: Partial<WorkerOptions> = {}): { stop: () => Promise<void>; log: string[] } {
	const log: string[] = [];
	const note = (message: string): void => {
		log.push(message);
	};
	const stopping = new AbortController();
	const worker = fake.client(t).worker({ handlers: { f: handler }, logger: { info: note, warn: note, error: note }, ...o });
	const result = worker.run(stopping.signal);
	result.catch(() => {}); // stop returns it.
	const stop = (): Promise<void> => {
		stopping.abort();
		return result;
	};
	t.after(() => stop().catch(() => {}));
	return { stop, log };
}

/** What the worker reported. */
function reports(fake: Fake): any[] {
	return fake.asked.filter((a) => a.method === "POST" && /\/(finish|retry)$/.test(a.path)).flatMap((a) => a.body.finishes ?? [{ path: a.path, ...a.body }]);
}

test("jobs that a claim still brings after a stop are handed back", async (t) => {
	const fake = await Fake.start(t, () => ({ ...aJob(), status: 200 }));
	fake.answer = async (asked) => {
		if (asked.path !== "/v1/jobs/claim") return { ...aJob(), status: 200 };
		await asked.left; // The worker closes its half of the connection, and reads the answer.
		return { body: { jobs: [leased("a")] } };
	};
	let ran = 0;
	const { stop } = work(t, fake, () => ran++);
	await eventually(() => fake.asked.length === 1);
	await stop();
	assert.deepEqual(reports(fake), [{ path: "/v1/jobs/a/retry", lease_token: "token-a", delay_ms: 0, uncounted: true }]);
	assert.equal(ran, 0);
});

test("a claim that is not answered after a stop is cancelled", async (t) => {
	const fake = await Fake.start(t, () => "hang");
	const { stop } = work(t, fake, () => {});
	await eventually(() => fake.asked.length === 1);
	await stop();
	await fake.asked[0]!.left;
});

test("a lost lease ends the handler, and nothing is reported", async (t) => {
	const fake = await Fake.start(t, queue([leased("a")], () => problem(409, "fenced")));
	let reason: unknown;
	const { stop, log } = work(t, fake, async (_, { signal }) => {
		await new Promise((resolve) => signal.addEventListener("abort", resolve));
		reason = signal.reason;
	}, { leaseMs: 1500 });
	await eventually(() => reason !== undefined);
	await stop();
	assert.ok(reason instanceof LeaseLostError);
	assert.deepEqual(reports(fake), []);
	assert.deepEqual(log, ["oncegate: the lease was lost: the outcome is not reported"]);
});

test("a timeout ends the handler, and the attempt has failed", async (t) => {
	const fake = await Fake.start(t, queue([leased("a", { timeout_ms: 20 }), leased("b", { timeout_ms: 20, attempt: 25 })]));
	const reasons: unknown[] = [];
	const { stop } = work(t, fake, async (_, { signal }) => {
		await new Promise((resolve) => signal.addEventListener("abort", resolve));
		reasons.push(signal.reason);
		throw signal.reason;
	});
	await eventually(() => reports(fake).length === 2);
	await stop();
	assert.ok(reasons.every((r) => r instanceof JobTimeoutError));
	const error = "JobTimeoutError: the attempt has reached the job's timeout_ms";
	assert.deepEqual(reports(fake).sort((a, b) => String(a.id).localeCompare(b.id)), [
		{ id: "b", lease_token: "token-b", status: "failed", error },
		{ path: "/v1/jobs/a/retry", lease_token: "token-a", error },
	]);
});

test("heartbeats continue until the outcome is recorded", async (t) => {
	let beats = 0;
	let refused = true;
	const jobs = queue([leased("a")], () => {
		beats++;
		return { body: { cancelled: false, expires_in_ms: 100 } };
	});
	const fake = await Fake.start(t, (asked, nth) => (asked.path === "/v1/jobs/finish" && refused ? problem(503, "overloaded") : jobs(asked, nth)));
	const { stop } = work(t, fake, () => "done", { leaseMs: 100 });
	await eventually(() => beats > 3);
	refused = false;
	await eventually(() => fake.to("/v1/jobs/finish").length > 0);
	await stop();
	assert.deepEqual(reports(fake).at(-1), { id: "a", lease_token: "token-a", status: "complete", result: "done" });
});

test("a stop ends handlers, and then counts those that do not return", async (t) => {
	const fake = await Fake.start(t, queue([leased("a"), leased("b", { payload: "stubborn" })], () => ({ body: { ...aJob().body, cancelled: false, expires_in_ms: 1 } })));
	let begun = 0;
	let reason: unknown;
	let goOn = (): void => {};
	const gone = new Promise<void>((resolve) => {
		goOn = resolve;
	});
	const { stop } = work(t, fake, async (job, { signal }) => {
		begun++;
		if (job.payload === "stubborn") return gone;
		await new Promise((resolve) => signal.addEventListener("abort", resolve));
		reason = signal.reason;
		throw new Error("stopped");
	}, { stopTimeoutMs: 1, stopGraceMs: 2000 });
	await eventually(() => begun === 2);
	await assert.rejects(stop(), /1 handlers did not return, and 0 outcomes were not recorded/);
	assert.ok(reason instanceof WorkerStoppingError);
	assert.deepEqual(reports(fake), [{ path: "/v1/jobs/a/retry", lease_token: "token-a", delay_ms: 0, uncounted: true }]);
	goOn();
});

test("a result that the manager refuses does not affect others", async (t) => {
	const jobs = queue([leased("a"), leased("b")]);
	const fake = await Fake.start(t, (asked, nth) => {
		const bad = asked.path === "/v1/jobs/finish" ? asked.body.finishes.some((f: any) => f.result === "a") : asked.body?.result === "a";
		return bad ? problem(400, "invalid-request") : jobs(asked, nth);
	});
	let begun = 0;
	let goOn = (): void => {};
	const gone = new Promise<void>((resolve) => {
		goOn = resolve;
	});
	const { stop } = work(t, fake, async (job) => {
		if (++begun === 2) goOn();
		await gone; // Both are finished in one request.
		return job.id;
	});
	await eventually(() => reports(fake).some((r) => r.status === "failed"));
	await stop();
	assert.deepEqual(fake.to("/v1/jobs/finish")[0]!.body.finishes.map((f: any) => f.id), ["a", "b"]);
	assert.deepEqual(reports(fake).slice(2).map((r) => [r.path ?? r.id, r.status, r.error]), [
		["/v1/jobs/a/finish", "complete", undefined],
		["/v1/jobs/b/finish", "complete", undefined],
		["a", "failed", "the work is done, but its result cannot be reported: manager: invalid-request: D"],
	]);
});

test("a manager that is away and comes back is logged once", async (t) => {
	let away = true;
	const jobs = queue([]);
	const fake = await Fake.start(t, (asked, nth) => (away ? "cut" : jobs(asked, nth)));
	const { stop, log } = work(t, fake, () => {}, { waitMs: 1 });
	await eventually(() => fake.asked.length > 5);
	away = false;
	fake.answer = () => ({ body: { jobs: [] } });
	await eventually(() => log.length > 1);
	await stop();
	assert.deepEqual(log, ["oncegate: the manager cannot be reached, trying again", "oncegate: the manager answers again"]);
});

test("a job without a lease and more jobs than asked for start no handler", async (t) => {
	let claims = 0;
	const fake = await Fake.start(t, () => (claims++ === 0
		? { body: { jobs: [leased("a", { lease: undefined }), leased("b")] } }
		: { body: { jobs: [] } }));
	let ran = 0;
	const { stop, log } = work(t, fake, () => ran++, { concurrency: 1 });
	await eventually(() => claims > 1);
	await stop();
	assert.deepEqual([ran, log], [0, ["oncegate: the manager answered a claim with too many jobs", "oncegate: the manager sent a job without a lease"]]);
});

test("bad worker options are refused", async (t) => {
	const client = (await Fake.start(t, () => "hang")).client(t);
	const f = (): void => {};
	const handlers = { f };
	for (const o of [
		{ handlers: {} }, { handlers: Object.fromEntries(Array.from({ length: 101 }, (_, i) => [`f${i}`, f])) }, { handlers: { "": f } }, { handlers: { "..": f } },
		{ handlers: { "a b": f } }, { handlers: { ["f".repeat(129)]: f } }, { handlers: { f: 1 } }, { handlers, name: "a b" }, { handlers, name: "" },
		{ handlers, concurrency: 0 }, { handlers, concurrency: 1001 }, { handlers, leaseMs: 99 }, { handlers, leaseMs: 86_400_001 }, { handlers, waitMs: 300_001 },
		{ handlers, waitMs: 0 }, { handlers, stopTimeoutMs: -1 }, { handlers, stopGraceMs: NaN },
	] as WorkerOptions[]) {
		assert.throws(() => client.worker(o), RangeError, JSON.stringify(o));
	}
	const [a, b] = [client.worker({ handlers }), client.worker({ handlers })];
	assert.ok(a.name !== b.name && /^[!-~]{1,128}$/.test(a.name));
	const stop = AbortSignal.abort();
	await a.run(stop);
	await assert.rejects(a.run(stop), /only once/);
});

test("whatever a handler does is an outcome", async () => {
	const nothing = { done: false, permanent: false };
	const done = { done: true, permanent: false };
	const lost = "the work is done, but its result cannot be reported";
	const circle: Error = new Error("circle");
	circle.cause = circle;
	for (const [handler, want] of [
		[() => undefined, { ...done, failure: "" }],
		[async () => null, { ...done, failure: "", result: { value: null, bytes: 4 } }],
		[() => new Date(0), { ...done, failure: "", result: { value: "1970-01-01T00:00:00.000Z", bytes: 26 } }],
		[() => () => 1, { ...done, failure: `${lost}: a function is no JSON` }],
		[() => 1n, { ...done, failure: `${lost}: TypeError: Do not know how to serialize a BigInt` }],
		[() => "x".repeat(1 << 20), { ...done, failure: `${lost}: 1048578 bytes, at most 1048576 are kept` }],
		[() => ({ toJSON: () => { throw new Error("no JSON"); } }), { ...done, failure: `${lost}: no JSON` }],
		[() => Promise.reject(new Error("no")), { ...nothing, failure: "no" }],
		[() => { throw new RangeError("no"); }, { ...nothing, failure: "RangeError: no" }],
		[() => { throw "text"; }, { ...nothing, failure: "text" }],
		[() => { throw undefined; }, { ...nothing, failure: "undefined" }],
		[() => { throw { toString: () => { throw new Error(); } }; }, { ...nothing, failure: "the handler threw a value that has no text" }],
		[() => { throw new Error(); }, { ...nothing, failure: "an error without a text" }],
		[() => { throw circle; }, { ...nothing, failure: "circle" }],
		[() => { throw new Permanent(new RangeError("never")); }, { ...nothing, permanent: true, failure: "RangeError: never" }],
		[() => { throw new Error("outer", { cause: new Permanent("never") }); }, { ...nothing, permanent: true, failure: "outer" }],
		[() => { throw new RetryAfter("later", 1.5); }, { ...nothing, delayMs: 2, failure: "later" }],
		[() => { throw new RetryAfter("later", -1); }, { ...nothing, delayMs: 0, failure: "later" }],
		[() => { throw new RetryAfter("later", NaN); }, { ...nothing, failure: "later" }],
		[undefined, { ...nothing, failure: "this worker has no handler for f" }],
	] as [Handler | undefined, object][]) {
		assert.deepEqual(await outcomeOf(handler, leased("a") as any, { signal: new AbortController().signal }), want);
	}
	assert.equal(Buffer.byteLength(cut("ü".repeat(100_000))), 32 << 10);
	assert.equal(cut("a" + "ü".repeat(100_000)), "a" + "ü".repeat((16 << 10) - 1));
	assert.equal(cut("a\ud800b"), "a\ufffdb");
});

test("idempotent finds handlers that are not", async () => {
	const sent: string[] = [];
	const check = (): string[] => sent; // A live value: idempotent copies it.
	const once: Handler = (job) => {
		if (!sent.includes(job.id)) sent.push(job.id);
		job.payload.changed = true;
		return { to: job.payload.to };
	};
	await idempotent(once, { to: "ann" }, check);
	assert.equal(sent.length, 1);
	await assert.rejects(idempotent((job) => { sent.push(job.id); }, 1, check), /run 2 changed the state that the first run left/);
	await assert.rejects(idempotent((job) => job.attempt, 1, check), /run 2 returned 2, the first one 1/);
	await assert.rejects(idempotent(() => { throw new TypeError("no"); }, 1, check), /run 1 of 3 with the same job: TypeError: no/);
	await assert.rejects(idempotent(() => () => 1, 1, check), /a function is no JSON/);
	await assert.rejects(idempotent(() => {}, () => 1, check), /payload: a function is no JSON/);
});
