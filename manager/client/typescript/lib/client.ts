import type { Agent } from "node:http";

import { Caller, encode, isObject, notOurs, page, problemError, refused, type Call, type CallOptions } from "./caller.js";
import { CallTimeoutError, WaitError, type ManagerError } from "./errors.js";
import { claim, finish, finishMany, heartbeat, job, jobOf, jobPath, retry } from "./jobs.js";
import { headerKey, Keys } from "./keys.js";
import { Ledger } from "./ledger.js";
import { Schedules } from "./schedules.js";
import { pause } from "./timing.js";
import type {
	Batch, BatchInfo, Beat, ClaimRequest, Event, FinishRequest, FunctionPage, Job, JobPage, Limits, ListQuery, PageQuery, RetryRequest, Sent, Submission, Submitted,
} from "./types.js";
import { Worker, type WorkerOptions } from "./worker.js";

/** Options of a Client. */
export interface ClientOptions {
	/** URL of the manager, or of the gate in front of it, for example http://127.0.0.1:8090, or unix:PATH for its Unix socket. */
	url: string;
	/**
	 * URLs of further managers that share the store with the first, at most 15; none with unix:. A call that does not reach a
	 * manager tries the next, without a pause until all were tried. The client then stays there.
	 *
	 * `claim` and `heartbeat` are not repeated: they reject, and the next call goes to the next manager.
	 */
	failover?: string[];
	/** Sent as a bearer token. */
	token?: string;
	/** Makes the connections, for example a `https.Agent` with a client certificate. The default keeps connections alive. */
	agent?: Agent;
	/** Makes idempotency keys. The default has a random client id. */
	keys?: Keys;
	/**
	 * Bounds a call with its repetitions: up to 24 days, default 5 minutes; `Infinity`: no bound. `wait` and `submitAndWait`
	 * have no bound by default.
	 */
	timeoutMs?: number;
	/** Bounds the wait for the answer to one attempt, in addition to the call's wait, and for each further part: default 15 s. */
	attemptTimeoutMs?: number;
	/** The pause after the first attempt, doubled with each further one; half of it is random. Default 50 ms. */
	backoffBaseMs?: number;
	/** The longest pause between attempts, default 5 s. A longer Retry-After of the manager takes precedence. */
	backoffMaxMs?: number;
	/** The longest Retry-After that a call waits for. A call that would have to wait longer rejects. Default: no bound. */
	maxRetryAfterMs?: number;
	/** Bounds the attempts of one call. Default: no bound but time. */
	maxAttempts?: number;
}

/** The answer to one submission of a batch: what `submit` would have resolved to, or rejected with, for it alone. */
export type BatchAnswer =
	| { job: Submitted; error?: undefined; idempotencyKey: string }
	| { job?: undefined; error: ManagerError; idempotencyKey: string }
	| {
		/** There was no answer. Submitting again with the same key finds out whether the job was enqueued. */
		job?: undefined; error: Error; idempotencyKey: string;
	};

/** Bounds of a batch; those of the bytes leave room for what is around the items. */
const maxBatchItems = 128;
const maxBatchBytes = (2 << 20) - 64;

/** How long one call of wait lets the manager wait. */
const waitStepMs = 30_000;

/**
 * Calls a manager. Calls of the same client may run at the same time. Every call may reject with a ManagerError,
 * ConnectionError, BadAnswerError, CallAbortedError or CallTimeoutError.
 */
export class Client {
	/** Makes the idempotency keys of submissions that have none. */
	readonly keys: Keys;
	/** The calls about keys for work of one's own. */
	readonly ledger: Ledger;
	/** The calls on schedules. */
	readonly schedules: Schedules;
	readonly #caller: Caller;

	/** Checks the options. It does not connect. */
	constructor(options: ClientOptions) {
		this.#caller = new Caller(options);
		this.keys = options.keys ?? new Keys();
		this.ledger = new Ledger(this.#caller);
		this.schedules = new Schedules(this.#caller, this.keys);
	}

	/** Closes the connections. A program need not call it to end. */
	close(): void {
		this.#caller.close();
	}

	/**
	 * Submits a job at most once: it repeats the call with the same key until it has an answer.
	 *
	 * A ManagerError that is not `temporary` is the manager's refusal. After any other error it is unknown whether the job was
	 * enqueued. Submitting again with the same `idempotency_key` finds out. A caller that may need that must set the key
	 * itself, for example to `client.keys.next()`.
	 */
	async submit(submission: Submission, options?: CallOptions): Promise<Submitted> {
		const { idempotency_key: key = this.keys.next(), traceparent, ...body } = submission;
		const call: Call = { method: "POST", path: "/v1/jobs", key, traceparent, body: Buffer.from(encodeSubmission(body)) };
		const reply = await this.#caller.call(call, options);
		return { ...jobOf(call, reply.value), replayed: reply.replayed };
	}

	/**
	 * Submits a job and waits until it is over, whether it completed, failed, was cancelled or expired. The options bound each of the
	 * two calls. When only the wait fails it rejects with a WaitError, which has the job.
	 */
	async submitAndWait<Result = unknown>(submission: Submission, options: CallOptions = {}): Promise<Job<unknown, Result> & { replayed: boolean }> {
		const submitted = await this.submit(submission, options);
		try {
			const done = await this.wait<Result>(submitted.id, options);
			const { replayed, deduplicated, existing } = submitted;
			return { ...done, replayed, ...(deduplicated && { deduplicated }), ...(existing && { existing }) };
		} catch (err) {
			throw new WaitError(submitted, err as Error);
		}
	}

	/**
	 * Submits jobs at most once each, in as few requests as possible. Each submission is judged by itself and has a key of its
	 * own. The i-th answer is to the i-th submission.
	 *
	 * When a request has no answer, all its submissions and those after it have that error. Submitting those again with their
	 * keys finds out which were enqueued.
	 */
	async submitBatch(submissions: Submission[], options?: CallOptions): Promise<BatchAnswer[]> {
		const keys = submissions.map((s) => s.idempotency_key ?? this.keys.next());
		// A member has the key itself, a header perhaps its RFC 8941 string.
		const items = submissions.map(({ traceparent: _, ...s }, i) => encodeSubmission({ ...s, idempotency_key: headerKey(keys[i]!).key }));
		const answers: BatchAnswer[] = [];
		for (let begin = 0; begin < items.length;) {
			let end = begin;
			let size = 0;
			while (end < items.length && end - begin < maxBatchItems) {
				const bytes = Buffer.byteLength(items[end]!) + 1;
				if (end > begin && size + bytes > maxBatchBytes) break;
				size += bytes;
				end++;
			}
			try {
				answers.push(...await this.#submitBatch(items.slice(begin, end), keys.slice(begin, end), options));
			} catch (err) {
				if (!(end - begin === 1 && refused(err))) { // One that is too large does not affect the others.
					answers.push(...keys.slice(begin).map((idempotencyKey) => ({ error: err as Error, idempotencyKey })));
					return answers;
				}
				answers.push({ error: err, idempotencyKey: keys[begin]! });
			}
			begin = end;
		}
		return answers;
	}

	async #submitBatch(items: string[], keys: string[], options: CallOptions | undefined): Promise<BatchAnswer[]> {
		const call: Call = { method: "POST", path: "/v1/jobs/batch", body: Buffer.from(`{"items":[${items.join()}]}`) };
		const { value } = await this.#caller.call(call, options);
		const results: unknown = isObject(value) ? value["results"] : undefined;
		if (!Array.isArray(results) || results.length !== items.length) throw notOurs(call, `not ${items.length} results`);
		return results.map((result: unknown, i): BatchAnswer => {
			if (!isObject(result)) throw notOurs(call, `result ${i} is no job`);
			const { status, replayed, retry_after: seconds, ...rest } = result;
			const idempotencyKey = keys[i]!;
			if (typeof rest["code"] === "string") {
				const retryAfterMs = typeof seconds === "number" ? seconds * 1000 : 0;
				return { error: problemError(result, { retryAfterMs, replayed: replayed === true }), idempotencyKey };
			}
			if (typeof status !== "number" || status < 200 || status > 299) throw notOurs(call, `result ${i} is no job`);
			return { job: { ...jobOf(call, rest), replayed: replayed === true }, idempotencyKey };
		});
	}

	/**
	 * Sends an event at most once. It becomes one job for each function that subscribes to it, all of them or none. A repetition
	 * with the same key enqueues nothing and gets the first call's answer, whatever subscribed in between.
	 */
	async send(event: Event, options?: CallOptions): Promise<Sent> {
		const { name, payload, idempotency_key: key = this.keys.next(), traceparent } = event;
		if (payload !== undefined) encode(payload, "payload");
		const call: Call = { method: "POST", path: `/v1/events/${encodeURIComponent(name)}`, key, traceparent, body: { payload } };
		const { value, replayed } = await this.#caller.call(call, options);
		if (!isObject(value) || !Array.isArray(value["jobs"])) throw notOurs(call, "no list of jobs");
		return { ...value, replayed } as unknown as Sent;
	}

	/** Submits jobs together at most once, all of them or none, and a job that runs when all have ended. */
	startBatch(batch: Batch, options?: CallOptions): Promise<BatchInfo> {
		const { jobs, callback, idempotency_key: key = this.keys.next(), traceparent } = batch;
		const one = ({ traceparent: _, idempotency_key: __, ...s }: Submission) => encodeSubmission(s);
		const body = Buffer.from(`{"jobs":[${jobs.map(one).join()}]${callback ? `,"callback":${one(callback)}` : ""}}`);
		return this.#batch({ method: "POST", path: "/v1/batches", key, traceparent, body }, options);
	}

	/** Returns a batch, without the ids of its jobs. */
	getBatch(id: string, options?: CallOptions): Promise<BatchInfo> {
		return this.#batch({ method: "GET", path: `/v1/batches/${encodeURIComponent(id)}` }, options);
	}

	async #batch(call: Call, options: CallOptions | undefined): Promise<BatchInfo> {
		const { value, replayed } = await this.#caller.call(call, options);
		if (!isObject(value) || typeof value["id"] !== "string" || typeof value["pending"] !== "number") throw notOurs(call, "no batch");
		return { ...value, replayed } as unknown as BatchInfo;
	}

	/**
	 * Makes each event of this name that is sent from now on a job of the function, until `unsubscribe`. Subscribing twice is not
	 * an error.
	 */
	subscribe(event: string, functionName: string, options?: CallOptions): Promise<void> {
		return this.#subscription("PUT", event, functionName, options);
	}

	/** Ends a subscription. Jobs that it has made stay. Ending one that does not exist is not an error. */
	unsubscribe(event: string, functionName: string, options?: CallOptions): Promise<void> {
		return this.#subscription("DELETE", event, functionName, options);
	}

	async #subscription(method: "PUT" | "DELETE", event: string, functionName: string, options: CallOptions | undefined): Promise<void> {
		const call: Call = { method, path: `/v1/events/${encodeURIComponent(event)}/subscriptions/${encodeURIComponent(functionName)}` };
		const { value } = await this.#caller.call(call, options);
		if (!isObject(value) || value["function"] !== functionName) throw notOurs(call, "no subscription");
	}

	/** Waits until the job is over and returns it. It has no bound unless the options set one. */
	wait<Result = unknown>(id: string, options: CallOptions = {}): Promise<Job<unknown, Result>> {
		const over = (found: Job) => ["complete", "failed", "cancelled", "replayed", "expired"].includes(found.state);
		return this.#until(`job ${id}`, jobPath(id), (call, o) => job(this.#caller, call, o), over, options) as Promise<Job<unknown, Result>>;
	}

	/** Waits until all jobs of the batch have ended and returns it. It has no bound unless the options set one. */
	waitBatch(id: string, options: CallOptions = {}): Promise<BatchInfo> {
		return this.#until(`batch ${id}`, `/v1/batches/${encodeURIComponent(id)}`, (call, o) => this.#batch(call, o), (b) => b.pending === 0, options);
	}

	async #until<T>(what: string, path: string, get: (call: Call, options: CallOptions) => Promise<T>, over: (found: T) => boolean, options: CallOptions): Promise<T> {
		const began = Date.now();
		const ending = options.signal ?? new AbortController().signal;
		const call: Call = { method: "GET", path: `${path}?wait_ms=${waitStepMs}`, waitMs: waitStepMs };
		for (;;) {
			const timeoutMs = options.timeoutMs === undefined ? Infinity : Math.max(1, options.timeoutMs - (Date.now() - began));
			let found: T;
			try {
				found = await get(call, { ...options, timeoutMs });
			} catch (err) {
				if (!(err instanceof CallTimeoutError)) throw err;
				throw new CallTimeoutError(`wait for ${what}`, options.timeoutMs!).after(err.lastError);
			}
			if (over(found)) return found;
			await pause(50, ending); // A manager that is stopping answers before the time is over.
		}
	}

	/** Returns a job with its payload and result. */
	get(id: string, options?: CallOptions): Promise<Job> {
		return job(this.#caller, { method: "GET", path: jobPath(id) }, options);
	}

	/** Returns one page of jobs. */
	list(query: ListQuery = {}, options?: CallOptions): Promise<JobPage> {
		return page(this.#caller, "/v1/jobs", query, "jobs", options);
	}

	/** Returns one page of functions, with their limits. */
	functions(query: PageQuery = {}, options?: CallOptions): Promise<FunctionPage> {
		return page(this.#caller, "/v1/functions", query, "functions", options);
	}

	/** Replaces the limits of a function's jobs. */
	async setLimits(name: string, limits: Limits, options?: CallOptions): Promise<void> {
		const call: Call = { method: "PUT", path: `/v1/functions/${encodeURIComponent(name)}`, body: limits };
		const { value } = await this.#caller.call(call, options);
		if (!isObject(value) || value["name"] !== name) throw notOurs(call, `no function ${name}`);
	}

	/** Cancels a job, or asks its worker to stop: then the job has `cancel_requested`. */
	cancel(id: string, options?: CallOptions): Promise<Job> {
		return job(this.#caller, { method: "POST", path: `${jobPath(id)}/cancel` }, options);
	}

	/** Makes a worker. It does nothing until `run`. */
	worker(options: WorkerOptions): Worker {
		return new Worker(this.#caller, options);
	}

	/** Leases jobs. It is not repeated, because a caller claims in a loop anyway. Workers do all this by themselves. */
	claim(request: ClaimRequest, options?: CallOptions): Promise<Job[]> {
		return claim(this.#caller, request, options);
	}

	/** Extends a lease by leaseMs from now, or by the claim's duration. It is not repeated: the next one serves as a repetition. */
	heartbeat(id: string, leaseToken: string, leaseMs?: number, options?: CallOptions): Promise<Beat> {
		return heartbeat(this.#caller, id, leaseToken, leaseMs, options);
	}

	/** Ends a job. */
	finish(request: FinishRequest, options?: CallOptions): Promise<Job> {
		return finish(this.#caller, request, options);
	}

	/** Ends up to 1000 jobs, in one transaction if they fit into one. The i-th answer is the error for the i-th job, if any. */
	finishMany(requests: FinishRequest[], options?: CallOptions): Promise<(ManagerError | undefined)[]> {
		return finishMany(this.#caller, requests, options);
	}

	/** Puts a worker's job back into the queue. */
	retry(id: string, request: RetryRequest, options?: CallOptions): Promise<Job> {
		return retry(this.#caller, id, request, options);
	}
}

/** Encodes a submission, and refuses a payload that JSON would leave out. */
function encodeSubmission(s: Submission): string {
	if (s.payload !== undefined) encode(s.payload, "payload");
	return encode(s, "submission");
}
