// The driver of the cases that the clients of all languages run: manager/internal/clienttest/languages describes it.

import { openSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

import {
	Client, JobCancelledError, JobTimeoutError, Keys, LeaseLostError, ManagerError, OncegateError, Permanent, RetryAfter, WorkerStoppingError,
	type CallOptions, type Handler, type RecordedAnswer,
} from "../lib/index.js";
import { idempotent } from "../lib/handlertest.js";

interface Command {
	op: string;
	args: any;
	within_ms?: number;
}

let client: Client;
let worker: { stop: AbortController; result: Promise<void>; goOn: () => void } | undefined;

const ops: Record<string, (args: any, options: CallOptions) => unknown> = {
	open: (a) => {
		client?.close();
		client = new Client({
			url: a.url, failover: a.failover, token: a.token, attemptTimeoutMs: a.timeout_ms, backoffBaseMs: a.backoff_base_ms, backoffMaxMs: a.backoff_max_ms,
			maxRetryAfterMs: a.max_retry_after_ms, maxAttempts: a.max_attempts, ...(a.client_id !== undefined && { keys: new Keys(a.client_id) }),
		});
	},
	submit: (a, o) => client.submit(a, o),
	submit_wait: (a, o) => client.submitAndWait(a, o),
	submit_batch: async (a, o) => {
		const answers = await client.submitBatch(a.items, o);
		return answers.map((answer) => {
			if (answer.error && !(answer.error instanceof ManagerError)) throw answer.error; // Without an answer it is one for all.
			return { idempotency_key: answer.idempotencyKey, ...(answer.error ? { error: failure(answer.error) } : { job: answer.job }) };
		});
	},
	send: (a, o) => client.send(a, o),
	start_batch: (a, o) => client.startBatch(a, o),
	wait_batch: (a, o) => client.waitBatch(a.id, o),
	subscribe: (a, o) => client.subscribe(a.name, a.function, o),
	unsubscribe: (a, o) => client.unsubscribe(a.name, a.function, o),
	wait: (a, o) => client.wait(a.id, o),
	get: (a, o) => client.get(a.id, o),
	cancel: (a, o) => client.cancel(a.id, o),
	list: (a, o) => client.list(a, o),
	put_schedule: ({ name, ...spec }, o) => client.schedules.put(name, spec, o),
	get_schedule: (a, o) => client.schedules.get(a.name, o),
	list_schedules: (a, o) => client.schedules.list(a, o),
	delete_schedule: (a, o) => client.schedules.delete(a.name, o),
	pause_schedule: (a, o) => client.schedules.pause(a.name, o),
	resume_schedule: (a, o) => client.schedules.resume(a.name, o),
	run_schedule: (a, o) => client.schedules.run(a.name, a.idempotency_key, o),
	functions: (a, o) => client.functions(a, o),
	set_limits: ({ function: name, ...limits }, o) => client.setLimits(name, limits, o),
	claim: (a, o) => client.claim(a, o),
	heartbeat: (a, o) => client.heartbeat(a.id, a.lease_token, a.lease_ms, o),
	finish: (a, o) => client.finish(a, o),
	retry: ({ id, ...a }, o) => client.retry(id, a, o),
	keys: (a) => take(new Keys(a.client_id), a.n),
	open_keys: async (a) => take(await Keys.open(a.file), a.n),
	reserve: async (a, o) => textual(await client.ledger.reserve(a, o)),
	commit: async (a, o) => {
		await client.ledger.commit(a, o);
		return { state: "committed" };
	},
	reject: async (a, o) => {
		await client.ledger.reject(a, o);
		return { state: "rejected" };
	},
	renew: (a, o) => client.ledger.renew(a, o),
	release: async (a, o) => {
		await client.ledger.release(a, o);
		return { state: "released" };
	},
	entry: async (a, o) => textual(await client.ledger.get(a.key, a.scope, o)),
	check: (a) => check(a.handler, a.payload),
	work: (a) => {
		let goOn = (): void => {};
		const gone = new Promise<void>((resolve) => {
			goOn = resolve;
		});
		const log = openSync(a.log, "a");
		const handlers = Object.fromEntries(Object.entries(a.handlers).map(([f, name]) => [f, logged(log, handler(name as string, gone))]));
		const w = client.worker({
			handlers, name: a.name, concurrency: a.concurrency, leaseMs: a.lease_ms, waitMs: a.wait_ms, stopTimeoutMs: a.stop_timeout_ms,
			stopGraceMs: a.stop_grace_ms, logger: { info: report, warn: report, error: report },
		});
		const stop = new AbortController();
		worker = { stop, result: w.run(stop.signal), goOn };
	},
	go_on: () => worker?.goOn(),
	stop: () => stopWorker(),
};

function report(message: string, fields: object): void {
	console.error(message, fields);
}

async function stopWorker(): Promise<void> {
	const stopped = worker;
	worker = undefined;
	stopped?.stop.abort();
	await stopped?.result;
}

function take(keys: Keys, n: number): string[] {
	return Array.from({ length: n }, () => keys.next());
}

/** Shows the body of a recorded answer as text. */
function textual<T extends { result?: RecordedAnswer }>(value: T | (Omit<T, "result"> & { result?: undefined })): object {
	return value.result ? { ...value, result: { ...value.result, body: Buffer.from(value.result.body).toString() } } : value;
}

function failure(thrown: unknown): object {
	const err = thrown as Error & { lastError?: Error };
	const e = err.lastError instanceof ManagerError ? err.lastError : err;
	const temporary = err instanceof OncegateError && err.temporary;
	if (!(e instanceof ManagerError)) return { status: 0, code: "", detail: err.message, temporary };
	return { status: e.status, code: e.code, detail: err.message, temporary, retry_after_ms: e.retryAfterMs, replayed: e.replayed };
}

/** Writes a handler's begin and end to the log. */
function logged(log: number, h: Handler): Handler {
	return async (job, context) => {
		const names = { job: job.id, attempt: job.attempt };
		writeSync(log, JSON.stringify({ event: "begin", ...names }) + "\n");
		try {
			return await h(job, context);
		} finally {
			writeSync(log, JSON.stringify({ event: "end", ...names, cause: causeOf(context.signal) }) + "\n");
		}
	};
}

function causeOf(signal: AbortSignal): string {
	if (signal.reason instanceof JobCancelledError) return "cancelled";
	if (signal.reason instanceof LeaseLostError) return "lease-lost";
	if (signal.reason instanceof JobTimeoutError) return "timeout";
	return signal.reason instanceof WorkerStoppingError ? "stopping" : "";
}

function ended(signal: AbortSignal): Promise<void> {
	return new Promise((resolve) => {
		if (signal.aborted) resolve();
		signal.addEventListener("abort", () => resolve());
	});
}

function handler(name: string, goOn: Promise<void>): Handler {
	const handlers: Record<string, Handler> = {
		echo: (job) => job.payload,
		nothing: () => {},
		large: (job) => "x".repeat(job.payload),
		umlauts: (job) => "ü".repeat(job.payload),
		no_json: () => () => {},
		deep: () => JSON.parse("[".repeat(99) + "]".repeat(99)),
		fail: (job) => {
			throw new Error(`no ${job.attempt}`);
		},
		fail_once: (job) => {
			if (job.attempt === 1) throw new Error("not yet");
			return "now";
		},
		permanent: () => {
			throw new Error("wrapped: never", { cause: new Permanent("never") });
		},
		retry_after: (job) => {
			if (job.attempt === 1) throw new RetryAfter(new Error("soon"), job.payload);
			return "later";
		},
		crash: () => {
			throw new TypeError("oh no");
		},
		no_text: () => {
			throw new Error();
		},
		endless: () => {
			throw new Permanent("ü".repeat(100_000));
		},
		wait: async (_, { signal }) => {
			await Promise.race([goOn, ended(signal)]);
			if (signal.aborted) throw new Error(causeOf(signal));
			return "done";
		},
		stubborn: async () => {
			await goOn;
			return "done";
		},
		finish_anyway: async (_, { signal }) => {
			await ended(signal);
			return causeOf(signal);
		},
		sleep: async (job, { signal }) => {
			let timer: NodeJS.Timeout | undefined;
			await Promise.race([ended(signal), new Promise((resolve) => {
				timer = setTimeout(resolve, job.payload);
			})]);
			clearTimeout(timer);
			if (signal.aborted) throw signal.reason;
			return "done";
		},
	};
	const found = handlers[name];
	if (!found) throw new Error(`no handler ${name}`);
	return found;
}

async function check(name: string, payload: unknown): Promise<void> {
	let done = 0;
	const seen = new Set<string>();
	const checked: Record<string, Handler> = {
		once: (job) => {
			if (!seen.has(job.id)) done++;
			seen.add(job.id);
			return done;
		},
		twice: () => {
			done++;
		},
	};
	await idempotent(checked[name] ?? handler(name, new Promise(() => {})), payload, () => done);
}

async function answer(line: string): Promise<object> {
	try {
		const { op, args, within_ms } = JSON.parse(line) as Command;
		const run = ops[op];
		if (!run) return { unsupported: true };
		return { ok: await run(args, { timeoutMs: within_ms }) ?? null };
	} catch (err) {
		return { error: failure(err) };
	}
}

async function end(): Promise<never> {
	try {
		await stopWorker();
	} catch (err) {
		console.error(err);
		process.exit(1);
	}
	process.exit(0);
}

process.once("SIGTERM", () => void end());
for await (const line of createInterface({ input: process.stdin })) {
	process.stdout.write(JSON.stringify(await answer(line)) + "\n");
}
await end();
