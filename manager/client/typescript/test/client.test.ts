import assert from "node:assert/strict";
import { createServer } from "node:http";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import {
	BadAnswerError, CallAbortedError, CallTimeoutError, Client, ConnectionError, hasCode, Keys, ManagerError, WaitError, type ClientOptions,
} from "../lib/index.js";
import { Caller } from "../lib/caller.js";
import { aJob, Fake, problem, type Told } from "./fake.js";

test("a submission is repeated with one key until it has an answer", async (t) => {
	const troubles: Told[] = ["cut", problem(503, "overloaded"), { status: 502, text: "<h1>bad gateway</h1>", headers: { "content-type": "text/html" } }, "hang"];
	const fake = await Fake.start(t, (_, nth) => troubles[nth - 1] ?? { ...aJob(), headers: { "idempotent-replayed": "true" } });
	const client = fake.client(t, { attemptTimeoutMs: 1000 });
	const job = await client.submit({ function: "f", payload: { a: 1 }, traceparent: "00-11111111111111111111111111111111-2222222222222222-01" });
	assert.equal(job.id, "j1");
	assert.equal(job.replayed, true);
	assert.equal(fake.asked.length, 5);
	for (const a of fake.asked) {
		assert.equal(a.headers["idempotency-key"], fake.asked[0]!.headers["idempotency-key"]);
		assert.ok(String(a.headers["idempotency-key"]).startsWith(`${client.keys.clientId}:1:`));
		assert.equal(a.headers["traceparent"], "00-11111111111111111111111111111111-2222222222222222-01");
		assert.deepEqual(a.body, { function: "f", payload: { a: 1 } });
	}
	await client.submit({ function: "f", idempotency_key: "mine" });
	assert.equal(fake.asked[5]!.headers["idempotency-key"], "mine");
});

for (const [name, first, again] of [
	["overloaded", problem(503, "overloaded"), true],
	["too many requests", { status: 429, text: "", headers: { "content-type": "text/plain" } }, true],
	["408", { status: 408, text: "" }, true],
	["425", { status: 425, text: "" }, true],
	["pending", problem(409, "request-pending"), true],
	["internal error", problem(500, "internal"), true],
	["a recorded 500", problem(500, "internal", { "idempotent-replayed": "true" }), false],
	["outcome unknown", problem(409, "outcome-unknown"), false],
	["unauthorized", problem(401, "unauthorized"), false],
	["conflict", problem(409, "conflict"), false],
	["a redirect with another method", { status: 303, text: "", headers: { location: "/v1/jobs" } }, false],
	["a success that is not of a manager", { text: "<h1>hello</h1>" }, false],
	["another success that is not of a manager", { body: { status: "ok" } }, false],
] as [string, Told, boolean][]) {
	test(`${name} is ${again ? "" : "not "}tried again`, async (t) => {
		const fake = await Fake.start(t, (_, nth) => (nth === 1 ? first : aJob()));
		const call = fake.client(t).submit({ function: "f" });
		await (again ? call : assert.rejects(call));
		assert.equal(fake.asked.length, again ? 2 : 1);
	});
}

test("errors have what the problem says", async (t) => {
	const fake = await Fake.start(t, () => problem(503, "queue-full", { "retry-after": "7" }));
	await assert.rejects(fake.client(t, { maxRetryAfterMs: 6_999 }).submit({ function: "f" }), (err) => {
		assert.ok(err instanceof ManagerError && hasCode(err, "queue-full") && !hasCode(err, "conflict"));
		const { status, code, title, detail, retryAfterMs, replayed, temporary, message } = err;
		assert.deepEqual({ status, code, title, detail, retryAfterMs, replayed, temporary, message }, {
			status: 503, code: "queue-full", title: "T", detail: "D", retryAfterMs: 7000, replayed: false, temporary: true, message: "manager: queue-full: D",
		});
		return true;
	});
	assert.equal(fake.asked.length, 1);
	fake.answer = () => ({ status: 301, text: "", headers: { location: "https://manager/" } });
	await assert.rejects(fake.client(t).get("a"), /301.*redirected to "https:\/\/manager\/"/);
	fake.answer = () => ({ text: "{" });
	await assert.rejects(fake.client(t).get("a"), BadAnswerError);
});

test("attempts, time and a signal bound a call", async (t) => {
	const fake = await Fake.start(t, () => problem(503, "ledger-full"));
	await assert.rejects(fake.client(t, { maxAttempts: 3 }).get("a"), ManagerError);
	assert.equal(fake.asked.length, 3);

	// In the middle of a pause the error has the last answer.
	fake.answer = () => problem(503, "ledger-full", { "retry-after": "3600" });
	await assert.rejects(fake.client(t).get("a", { timeoutMs: 1000 }), (err) => {
		assert.ok(err instanceof CallTimeoutError && hasCode(err.lastError, "ledger-full"));
		assert.match(err.message, /GET \/v1\/jobs\/a: no final answer within 1000 ms, after manager: ledger-full/);
		return err.name === "TimeoutError";
	});
	const why = new Error("why");
	const stop = new AbortController();
	fake.answer = () => {
		setImmediate(() => stop.abort(why));
		return problem(503, "ledger-full", { "retry-after": "3600" });
	};
	await assert.rejects(fake.client(t).get("a", { signal: stop.signal }), (err) => {
		assert.ok(err instanceof CallAbortedError);
		return err.cause === why && err.name === "AbortError";
	});
	// In the middle of an attempt the connection is closed.
	const another = new AbortController();
	let closed: Promise<void> | undefined;
	fake.answer = (asked) => {
		closed = asked.left;
		setImmediate(() => another.abort());
		return "hang";
	};
	await assert.rejects(fake.client(t).get("a", { signal: another.signal }), CallAbortedError);
	await closed;
	const before = fake.asked.length;
	await assert.rejects(fake.client(t).get("a", { signal: AbortSignal.abort() }), CallAbortedError);
	assert.equal(fake.asked.length, before);
});

test("many calls may have one signal", async (t) => {
	const fake = await Fake.start(t, () => aJob());
	const client = fake.client(t);
	const warnings: Error[] = [];
	const note = (warning: Error): void => {
		warnings.push(warning);
	};
	process.on("warning", note);
	t.after(() => process.off("warning", note));
	const { signal } = new AbortController();
	await Promise.all(Array.from({ length: 50 }, () => client.get("a", { signal })));
	assert.deepEqual(warnings, []);
});

test("an attempt is bounded by progress", async (t) => {
	const fake = await Fake.start(t, () => "hang");
	const claim = { worker: "w", wait_ms: 10 };
	await assert.rejects(fake.client(t, { attemptTimeoutMs: 500 }).claim(claim), (err) => err instanceof ConnectionError && /no answer within 510 ms/.test(err.message));
	const text = '{"jobs":[]}';
	for (const [pauseMs, ok] of [[120, true], [60_000, false]] as const) { // The answer comes one byte at a time.
		fake.answer = async (asked): Promise<Told> => {
			asked.socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n`);
			asked.socket.on("error", () => {});
			for (const c of text) {
				if (asked.socket.destroyed) break;
				asked.socket.write(c);
				await Promise.race([asked.left, new Promise((resolve) => setTimeout(resolve, pauseMs).unref())]);
			}
			return "hang";
		};
		const call = fake.client(t, { attemptTimeoutMs: 1000 }).claim(claim);
		if (ok) assert.deepEqual(await call, []);
		else await assert.rejects(call, /no further part of the answer within 1000 ms/);
	}
});

test("an answer whose connection is closed is complete", async (t) => {
	const error = "x".repeat(4 << 20);
	const fake = await Fake.start(t, () => ({ ...aJob({ error }), headers: { connection: "close" } }));
	const client = fake.client(t);
	for (let i = 0; i < 20; i++) assert.equal((await client.get("a", { timeoutMs: 10_000 })).error, error);
	assert.equal(fake.asked.length, 20);
	fake.answer = ({ socket }) => { // Without a length, the end of the connection is that of the answer.
		socket.end(`HTTP/1.1 200 OK\r\n\r\n${JSON.stringify(aJob({ error }).body)}`);
		return "hang";
	};
	assert.equal((await client.get("a")).error, error);
	assert.equal(fake.asked.length, 21);
});

test("answers that break off or are too long are no answers", async (t) => {
	const fake = await Fake.start(t, (asked) => {
		asked.socket.end('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"jobs":');
		return "hang";
	});
	const client = fake.client(t);
	await assert.rejects(client.claim({ worker: "w" }), ConnectionError);
	fake.answer = (asked) => {
		asked.socket.write("HTTP/1.1 200 OK\r\n\r\n");
		const part = Buffer.alloc(1 << 20, " ");
		const write = (): void => {
			while (!asked.socket.destroyed && asked.socket.write(part));
		};
		asked.socket.on("drain", write);
		asked.socket.on("error", () => {});
		write();
		return "hang";
	};
	await assert.rejects(client.claim({ worker: "w" }), /answer of more than 33554432 bytes/);
});

test("calls continue with the next manager", async (t) => {
	const fakes = await Promise.all([1, 2, 3].map(() => Fake.start(t, () => aJob())));
	const [a, b, c] = fakes as [Fake, Fake, Fake];
	const all = { url: a.url, failover: [b.url + "/", c.url], maxAttempts: 4, attemptTimeoutMs: 1000 };
	const client = a.client(t, all);
	const check = async (what: string, call: () => Promise<unknown>, ok: boolean, counts: number[]): Promise<void> => {
		const before = fakes.map((f) => f.asked.length);
		await (ok ? call() : assert.rejects(call(), Error, what));
		assert.deepEqual(fakes.map((f, i) => f.asked.length - before[i]!), counts, what);
	};
	const get = (): Promise<unknown> => client.get("x");
	await check("all are there", get, true, [1, 0, 0]);
	a.answer = () => "cut";
	await check("the first is down", get, true, [1, 1, 0]);
	await check("the client stays", get, true, [0, 1, 0]);
	a.answer = () => aJob();
	b.answer = () => "hang";
	c.answer = () => problem(503, "unavailable");
	await check("the second hangs, the third stops", get, true, [1, 1, 1]);
	a.answer = () => problem(503, "ledger-full");
	await check("another store would not help", get, false, [4, 0, 0]);
	a.answer = b.answer = () => "cut";
	await check("all are down", get, false, [2, 1, 1]);
	c.answer = b.answer = a.answer = () => "cut";
	await check("a claim is not repeated", () => client.claim({ worker: "w" }), false, [0, 1, 0]);
	c.answer = () => ({ body: { jobs: [] } });
	await check("the next one is made elsewhere", () => client.claim({ worker: "w" }), true, [0, 0, 1]);
	const stop = new AbortController();
	c.answer = () => {
		setImmediate(() => stop.abort());
		return "hang";
	};
	await check("a caller that leaves moves nothing", () => client.get("x", { signal: stop.signal }), false, [0, 0, 1]);
	c.answer = () => aJob();
	await check("the client is still there", get, true, [0, 0, 1]);
});

test("redirects that keep the method are followed", async (t) => {
	const other = await Fake.start(t, () => aJob());
	const fake = await Fake.start(t, ({ path }) => ({ status: 307, text: "", headers: { location: path === "/a/v1/jobs" ? "/b" : `${other.url}/c?d` } }));
	await fake.client(t, { url: `${fake.url}/a`, token: "secret" }).submit({ function: "f" });
	assert.deepEqual(fake.asked.map((a) => [a.path, a.headers.authorization]), [["/a/v1/jobs", "Bearer secret"], ["/b", "Bearer secret"]]);
	const [asked] = other.asked;
	assert.deepEqual([asked?.method, asked?.path, asked?.body, asked?.headers.authorization], ["POST", "/c?d", { function: "f" }, undefined]);
	fake.answer = () => ({ status: 308, text: "", headers: { location: "/again" } });
	await assert.rejects(fake.client(t).get("a"), /308.*redirected to "\/again"/);
	assert.equal(fake.asked.length, 2 + 11);
});

test("a batch has a key, an answer and an error of its own for each submission", async (t) => {
	const fake = await Fake.start(t, ({ body }) => ({
		body: {
			results: body.items.map((item: any) => item.function === "bad"
				? { type: "t", title: "T", status: 503, code: "queue-full", detail: "D", retry_after: 3 }
				: { ...aJob({ id: item.idempotency_key }).body, status: 202, replayed: true }),
		},
	}));
	const client = fake.client(t);
	const all = Array.from({ length: 130 }, (_, i) => ({ function: i === 1 ? "bad" : "f", payload: "x".repeat(i < 3 ? 900_000 : 1) }));
	const answers = await client.submitBatch(all);
	assert.deepEqual(fake.asked.map((a) => a.body.items.length), [2, 128]);
	answers.forEach((a, i) => {
		assert.ok(a.idempotencyKey.startsWith(`${client.keys.clientId}:${i + 1}:`));
		if (i === 1) assert.ok(hasCode(a.error, "queue-full") && a.error.retryAfterMs === 3000 && a.error.temporary);
		else assert.deepEqual([a.job?.id, a.job?.replayed], [a.idempotencyKey, true]);
	});
	// Without an answer the keys are known.
	fake.answer = () => "cut";
	const lost = await fake.client(t, { maxAttempts: 1 }).submitBatch([{ function: "f" }, { function: "f", idempotency_key: "mine" }]);
	assert.ok(lost.every((a) => a.error instanceof ConnectionError) && lost[1]!.idempotencyKey === "mine");
	// One that is too large does not affect the others.
	fake.answer = ({ body }) => (body.items.length === 1 ? problem(413, "too-large") : { body: { results: body.items.map(() => ({ ...aJob().body, status: 202 })) } });
	const mixed = await client.submitBatch([{ function: "f", payload: "x".repeat(3 << 20) }, { function: "f" }, { function: "f" }]);
	assert.ok(hasCode(mixed[0]!.error, "too-large") && mixed[1]!.job && mixed[2]!.job?.replayed === false);
});

test("an event is sent with one key, and functions subscribe to it", async (t) => {
	const fake = await Fake.start(t, ({ method }, nth) => {
		if (nth === 1) return "cut";
		if (method !== "POST") return { body: { function: "mail.receipt" } };
		return { status: 202, body: { event: "order.paid", jobs: [{ id: "j", function: "mail.receipt" }] }, headers: { "idempotent-replayed": "true" } };
	});
	const client = fake.client(t);
	const sent = await client.send({ name: "order.paid", payload: { order: 17 } });
	assert.deepEqual(sent, { event: "order.paid", jobs: [{ id: "j", function: "mail.receipt" }], replayed: true });
	await client.send({ name: "order.paid", idempotency_key: "paid-17" });
	await client.subscribe("order.paid", "mail.receipt");
	await client.unsubscribe("order.paid", "mail.receipt");
	const drawn = fake.asked[0]!.headers["idempotency-key"];
	const subscription = "/v1/events/order.paid/subscriptions/mail.receipt";
	assert.deepEqual(fake.asked.map((a) => [a.method, a.path, a.body, a.headers["idempotency-key"]]), [
		["POST", "/v1/events/order.paid", { payload: { order: 17 } }, drawn],
		["POST", "/v1/events/order.paid", { payload: { order: 17 } }, drawn],
		["POST", "/v1/events/order.paid", {}, "paid-17"],
		["PUT", subscription, undefined, undefined],
		["DELETE", subscription, undefined, undefined],
	]);
	await assert.rejects(client.send({ name: "e", payload: () => 1 }), /payload: a function is no JSON/);
});

test("wait asks until the job is over", async (t) => {
	const states = ["queued", "active", "failed"];
	const fake = await Fake.start(t, (asked) => (asked.method === "POST" ? aJob({ existing: true }) : { ...aJob({ state: states.shift(), result: 42 }), status: 200 }));
	const client = fake.client(t);
	const done = await client.submitAndWait({ function: "f" });
	assert.deepEqual([done.state, done.result, done.existing, done.replayed], ["failed", 42, true, false]);
	assert.equal(fake.to("/v1/jobs/j1?wait_ms=30000").length, 3);
	fake.answer = (asked) => (asked.method === "POST" ? aJob() : "hang");
	await assert.rejects(client.submitAndWait({ function: "f" }, { timeoutMs: 1000 }), (err) => err instanceof WaitError && err.job.id === "j1" && err.cause instanceof CallTimeoutError && /wait for job j1: no final answer within 1000 ms/.test(err.message));
	const stop = new AbortController();
	fake.answer = () => {
		setImmediate(() => stop.abort());
		return aJob();
	};
	await assert.rejects(client.wait("j1", { signal: stop.signal }), CallAbortedError);
});

test("get, list, cancel, heartbeat, finish and retry make their calls", async (t) => {
	const fake = await Fake.start(t, ({ path }) => {
		if (path.startsWith("/v1/jobs?")) return { body: { jobs: [aJob().body], cursor: "c" } };
		if (path.endsWith("/heartbeat")) return { body: { cancelled: true, expires_in_ms: 5 } };
		if (path === "/v1/jobs/finish") return { body: { results: [{ id: "a", state: "complete" }, { id: "b", problem: { status: 409, code: "fenced", title: "T" } }] } };
		return { ...aJob(), status: 200 };
	});
	const client = fake.client(t, { token: "secret" });
	const lease = { lease_token: "t" };
	await client.get("a/b");
	assert.deepEqual((await client.list({ function: "f g", state: "failed", limit: 2, payloads: true })).cursor, "c");
	await client.cancel("a");
	assert.deepEqual(await client.heartbeat("a", "t", 100), { cancelled: true, expires_in_ms: 5 });
	await client.finish({ id: "a", ...lease, status: "complete", result: null });
	const errs = await client.finishMany([{ id: "a", ...lease, status: "complete" }, { id: "b", ...lease, status: "failed", error: "e" }]);
	assert.ok(errs[0] === undefined && hasCode(errs[1], "fenced"));
	await client.retry("a", { ...lease, delay_ms: 0, uncounted: true });
	assert.deepEqual(fake.asked.map((a) => [a.method, a.path, a.body]), [
		["GET", "/v1/jobs/a%2Fb", undefined],
		["GET", "/v1/jobs?function=f+g&state=failed&limit=2&payloads=true", undefined],
		["POST", "/v1/jobs/a/cancel", undefined],
		["POST", "/v1/jobs/a/heartbeat", { lease_token: "t", lease_ms: 100 }],
		["POST", "/v1/jobs/a/finish", { lease_token: "t", status: "complete", result: null }],
		["POST", "/v1/jobs/finish", { finishes: [{ id: "a", ...lease, status: "complete" }, { id: "b", ...lease, status: "failed", error: "e" }] }],
		["POST", "/v1/jobs/a/retry", { lease_token: "t", delay_ms: 0, uncounted: true }],
	]);
	assert.ok(fake.asked.every((a) => a.headers.authorization === "Bearer secret"));
	// Answers that anything may give are no success, and no reason to repeat the call.
	for (const body of [{}, null, { status: "ok" }, { results: [] }, { results: [{ id: "a" }, { id: "b" }] }]) {
		fake.answer = () => ({ body });
		for (const call of [
			() => client.get("a"), () => client.list(), () => client.functions(), () => client.setLimits("f", {}), () => client.schedules.list(), () => client.schedules.pause("s"),
			() => client.schedules.run("s"), () => client.cancel("a"), () => client.heartbeat("a", "t"), () => client.claim({ worker: "w" }),
			() => client.finish({ id: "a", ...lease, status: "complete" }), () => client.retry("a", lease), () => client.wait("a"),
			() => client.send({ name: "e" }), () => client.subscribe("e", "f"), () => client.unsubscribe("e", "f"),
			() => client.finishMany([{ id: "a", ...lease, status: "complete" }, { id: "b", ...lease, status: "complete" }]),
			() => client.ledger.reserve({ key: "k", token: "t" }), () => client.ledger.get("k"), () => client.ledger.release({ key: "k", token: "t" }),
		]) {
			const before = fake.asked.length;
			await assert.rejects(call, BadAnswerError);
			assert.equal(fake.asked.length, before + 1);
		}
	}
});

test("ledger calls carry answers as bytes", async (t) => {
	const recorded = { status: 201, headers: [["content-type", "text/plain"]], body: "aGk=" };
	const names = { key: "k/1", scope: "s", token: "t" };
	const fake = await Fake.start(t, () => ({ status: 201, body: { state: "reserved", token: "t", expires_in_ms: 9 } }));
	const { ledger } = fake.client(t);
	assert.deepEqual(await ledger.reserve({ ...names, wait_ms: 5 }), { state: "reserved", token: "t", expires_in_ms: 9 });
	assert.deepEqual(await ledger.renew(names), { state: "reserved", token: "t", expires_in_ms: 9 });
	assert.equal((await ledger.reserve({ key: "k" })).state, "reserved");
	assert.match(fake.asked.at(-1)!.body.token, /^[0-9a-f-]{36}$/);
	fake.answer = () => ({ status: 202, body: { state: "pending", expires_in_ms: 9 }, headers: { "retry-after": "2" } });
	assert.deepEqual(await ledger.reserve(names), { state: "pending", expires_in_ms: 9, retryAfterMs: 2000 });
	fake.answer = () => ({ body: { state: "committed", expires_in_ms: 9, result: recorded } });
	const found = await ledger.reserve(names);
	assert.ok(found.state === "committed" && Buffer.from(found.result.body).toString() === "hi" && found.result.headers[0]![0] === "content-type");
	await ledger.commit({ ...names, result: { status: 201, body: "hi" } });
	fake.answer = () => ({ body: { state: "rejected" } });
	await ledger.reject({ ...names, result: { status: 400, body: new Uint8Array([0, 104, 105]).subarray(1) } });
	assert.deepEqual(fake.asked.slice(-2).map((a) => a.body.result), [{ status: 201, body: "aGk=" }, { status: 400, body: "aGk=" }]);
	fake.answer = () => ({ body: { state: "released" } });
	await ledger.release(names);
	fake.answer = () => ({ body: { key: "k/1", scope: "s", state: "committed", age_ms: 1, expires_in_ms: 9, result: recorded } });
	const entry = await ledger.get("k/1", "s");
	assert.equal(Buffer.from(entry!.result!.body).toString(), "hi");
	assert.equal(fake.asked.at(-1)!.path, "/v1/ledger/entries/k%2F1?scope=s");
	fake.answer = () => problem(404, "not-found");
	await assert.rejects(ledger.get("k"), (err) => hasCode(err, "not-found"));
	fake.answer = () => problem(409, "outcome-unknown");
	const before = fake.asked.length;
	await assert.rejects(ledger.reserve(names), (err) => hasCode(err, "outcome-unknown"));
	assert.equal(fake.asked.length, before + 1);
});

test("a pause is at most an hour", () => {
	const caller = new Caller({ url: "http://a" });
	for (const [asked, pause] of [[60_000, 60_000], [86_400_000, 3_600_000]] as const) {
		assert.equal(caller.backoff(1, new ManagerError({ status: 503, retryAfterMs: asked })), pause);
	}
});

test("bad options and what cannot be sent are refused", async (t) => {
	const ok = { url: "http://a" };
	for (const o of [
		{ url: "" }, { url: "localhost:9000" }, { url: "ftp://x" }, { url: "http://" }, { url: "http:a" }, { url: "http://a?b=c" }, { url: "http://a?" }, { url: "http://u:p@a" },
		{ url: "http://a#b" }, { url: "unix:" }, { ...ok, failover: ["b"] }, { ...ok, failover: ["unix:/x"] }, { url: "unix:/x", failover: ["http://a"] },
		{ ...ok, failover: Array.from({ length: 16 }, () => "http://b") }, { ...ok, token: "a\nb" }, { ...ok, token: "" }, { ...ok, token: "t".repeat(4097) },
		{ ...ok, timeoutMs: -1 }, { ...ok, timeoutMs: 2 ** 31 }, { ...ok, attemptTimeoutMs: Infinity }, { ...ok, attemptTimeoutMs: NaN }, { ...ok, backoffBaseMs: -1 },
		{ ...ok, backoffMaxMs: 0 }, { ...ok, maxAttempts: 0 }, { ...ok, maxAttempts: 1.5 },
	] as ClientOptions[]) {
		assert.throws(() => new Client(o), RangeError, JSON.stringify(o));
	}
	const fake = await Fake.start(t, () => aJob());
	const client = fake.client(t);
	for (const key of ["a\nb", "a,b", " ", "", "ü", "k".repeat(256), '"a', '"a"b', '"a\\b"', '""']) {
		await assert.rejects(client.submit({ function: "f", idempotency_key: key }), /idempotency key/, key);
	}
	await assert.rejects(client.submit({ function: "f", payload: () => 1 }), /payload: a function is no JSON/);
	await assert.rejects(client.submit({ function: "f", payload: 1n }), TypeError);
	assert.equal(fake.asked.length, 0);
	for (const key of ["a b", '"a,b"', '"a\\"b";p=1', "k".repeat(255)]) await client.submit({ function: "f", idempotency_key: key });
	assert.equal(fake.asked.length, 4);
});

test("a prefix of the URL and a Unix socket are used", async (t) => {
	const fake = await Fake.start(t, () => aJob());
	await fake.client(t, { url: `${fake.url}/prefix/` }).get("a");
	assert.equal(fake.asked[0]!.path, "/prefix/v1/jobs/a");
	const dir = await mkdtemp(join(tmpdir(), "oncegate-"));
	t.after(() => rm(dir, { recursive: true }));
	const path = join(dir, "socket");
	const server = createServer((_, res) => res.end(JSON.stringify(aJob().body)));
	await new Promise<void>((resolve) => server.listen(path, resolve));
	t.after(() => server.close());
	assert.equal((await fake.client(t, { url: `unix:${path}` }).get("a")).id, "j1");
});

test("keys never repeat and keep their client id in a file", async (t) => {
	const dir = await mkdtemp(join(tmpdir(), "oncegate-"));
	t.after(() => rm(dir, { recursive: true }));
	const file = join(dir, "state", "id");
	const all = await Promise.all([1, 2, 3, 4].map(() => Keys.open(file)));
	assert.equal(new Set(all.map((k) => k.clientId)).size, 1);
	assert.equal((await readFile(file, "utf8")).trim(), all[0]!.clientId);
	const keys = all.flatMap((k) => [k.next(), k.next()]);
	assert.equal(new Set(keys).size, 8);
	assert.match(keys[0]!, /^client-[0-9a-f]{16}:1:[0-9a-f]{16}$/);
	assert.match(new Keys("host1.dc1:12345").next(), /^host1\.dc1:12345:1:/);
	for (const id of ["", "a b", "ü", "x".repeat(218)]) assert.throws(() => new Keys(id), RangeError);
});
