import { setMaxListeners } from "node:events";

import { refused, type CallOptions, type Caller } from "./caller.js";
import type { Logger } from "./contact.js";
import { hasCode, JobCancelledError, ManagerError, WorkerStoppingError } from "./errors.js";
import { finish, finishMany, retry } from "./jobs.js";
import { cut, notReportable, type Outcome } from "./outcome.js";
import { turn } from "./timing.js";
import type { FinishRequest, Job, RetryRequest } from "./types.js";

/** A finish that waits to be sent. */
interface Queued {
	request: FinishRequest;
	bytes: number;
	settle: (err: unknown) => void;
}

/**
 * Finishes are sent together: while one request is in progress, those that arrive wait for the next. Their results are
 * bounded, so the request is too.
 */
const maxBatch = 500;
const maxBatchBytes = 256 << 10;

/** Sends the manager how handlers ended. */
export class Reporter {
	readonly #caller: Caller;
	readonly #logger: Logger;
	readonly #timeoutMs: number;
	readonly #ending = new AbortController();
	readonly #queue: Queued[] = [];
	#sending = false;

	constructor(caller: Caller, logger: Logger, leaseMs: number) {
		this.#caller = caller;
		this.#logger = logger;
		// An outage of the manager does not count for leases, so an outcome is offered for longer than a lease.
		this.#timeoutMs = 3_600_000 + 2 * leaseMs;
		setMaxListeners(0, this.#ending.signal); // Each outcome that waits for its report is one.
	}

	/** Is aborted by end. */
	get ending(): AbortSignal {
		return this.#ending.signal;
	}

	/** Ends all reports. */
	end(): void {
		this.#ending.abort();
	}

	get #options(): CallOptions {
		return { signal: this.#ending.signal, timeoutMs: this.#timeoutMs };
	}

	/** Reports a handler's outcome, and repeats that until the manager answers. reason is that of the handler's signal. */
	async report(job: Job, o: Outcome, reason: unknown): Promise<void> {
		const names = { id: job.id, lease_token: job.lease!.token! };
		const failed: FinishRequest = { ...names, status: "failed", error: o.failure };
		if (o.failure === "") {
			await this.#complete(job, names, o.result);
		} else if (o.done || (o.permanent && !(reason instanceof JobCancelledError))) {
			this.#reported(job, "failed", await this.#finish(failed, 0));
		} else if (reason instanceof JobCancelledError) {
			this.#reported(job, "cancelled", await this.#finish({ ...failed, status: "cancelled" }, 0));
		} else if (reason instanceof WorkerStoppingError) { // Nothing is wrong with the job.
			await this.handBack(job);
		} else {
			await this.#again(job, failed, o.delayMs);
		}
	}

	async #complete(job: Job, names: { id: string; lease_token: string }, result: Outcome["result"]): Promise<void> {
		const done: FinishRequest = { ...names, status: "complete", ...(result && { result: result.value }) };
		const err = await this.#finish(done, result?.bytes ?? 0);
		if (!result || !refused(err)) {
			this.#reported(job, "complete", err);
			return;
		}
		// For example nested too deep. The manager will never accept it, and without a report the work would run again.
		const error = cut(`${notReportable}: ${err.message}`);
		this.#reported(job, "failed", await this.#finish({ ...names, status: "failed", error }, 0));
	}

	/** Lets the job run again while attempts remain. */
	async #again(job: Job, failed: FinishRequest, delayMs: number | undefined): Promise<void> {
		if (job.attempt < job.max_attempts) {
			const request = { lease_token: failed.lease_token, error: failed.error!, ...(delayMs !== undefined && { delay_ms: delayMs }) };
			const err = await this.#retry(job, request);
			if (!hasCode(err, "conflict", "invalid-request")) {
				this.#reported(job, "retry", err);
				return;
			}
		}
		this.#reported(job, "failed", await this.#finish(failed, 0));
	}

	/** Lets another worker have the job immediately, as if it had not been claimed. */
	async handBack(job: Job): Promise<void> {
		const err = await this.#retry(job, { lease_token: job.lease!.token!, delay_ms: 0, uncounted: true });
		this.#reported(job, "hand back", err);
	}

	#retry(job: Job, request: RetryRequest): Promise<unknown> {
		return errorOf(retry(this.#caller, job.id, request, this.#options, { persistent: true }));
	}

	#reported(job: Job, report: string, err: unknown): void {
		if (err === undefined) return;
		const fields = { job: job.id, function: job.function, report };
		if (hasCode(err, "fenced", "not-found")) {
			this.#logger.warn("oncegate: lease lost before the report", fields);
		} else {
			this.#logger.error("oncegate: report failed, the job comes back when its lease runs out", { ...fields, error: String(err) });
		}
	}

	/** Ends a job, together with others, and resolves to the error, if any. resultBytes is the size of the result. */
	#finish(request: FinishRequest, resultBytes: number): Promise<unknown> {
		const bytes = resultBytes + Buffer.byteLength(request.error ?? "");
		if (bytes > maxBatchBytes / 4) return this.#finishAlone(request);
		return new Promise((settle) => {
			this.#queue.push({ request, bytes, settle });
			if (!this.#sending) void this.#send();
		});
	}

	#finishAlone(request: FinishRequest): Promise<unknown> {
		return errorOf(finish(this.#caller, request, this.#options, { persistent: true }));
	}

	/** Sends what is in the queue until it is empty. */
	async #send(): Promise<void> {
		this.#sending = true;
		while (this.#queue.length > 0) {
			await turn(); // Other handlers may be returning right now.
			let n = 0;
			for (let bytes = 0; n < this.#queue.length && n < maxBatch && bytes < maxBatchBytes; n++) bytes += this.#queue[n]!.bytes;
			await this.#sendBatch(this.#queue.splice(0, n));
		}
		this.#sending = false;
	}

	async #sendBatch(batch: Queued[]): Promise<void> {
		let errs: unknown[];
		let again = (err: unknown): boolean => err instanceof ManagerError && err.temporary;
		try {
			errs = await finishMany(this.#caller, batch.map((q) => q.request), this.#options, { persistent: true });
		} catch (err) {
			errs = batch.map(() => err);
			again = refused; // One of them caused it: the others must not suffer.
		}
		for (const [i, { request, settle }] of batch.entries()) {
			settle(again(errs[i]) ? await this.#finishAlone(request) : errs[i]);
		}
	}
}

async function errorOf(call: Promise<unknown>): Promise<unknown> {
	try {
		await call;
		return undefined;
	} catch (err) {
		return err;
	}
}
