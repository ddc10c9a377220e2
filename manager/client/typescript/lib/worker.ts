import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import type { Caller } from "./caller.js";
import { Contact, type Logger } from "./contact.js";
import { JobTimeoutError, LeaseLostError, WorkerStoppingError } from "./errors.js";
import { claim } from "./jobs.js";
import { quote, visible } from "./keys.js";
import { keepLease } from "./lease.js";
import { outcomeOf } from "./outcome.js";
import { Reporter } from "./report.js";
import { Slots, aborted, pause, turn, within } from "./timing.js";
import type { Job } from "./types.js";

export type { Logger } from "./contact.js";

/** What a handler gets besides the job. */
export interface HandlerContext {
	/**
	 * Ends when the job is cancelled (its reason is a JobCancelledError), when its lease is lost (LeaseLostError), after the
	 * job's timeout_ms (JobTimeoutError), and stopTimeoutMs after the worker was stopped (WorkerStoppingError). A handler passes
	 * it to what it waits for.
	 */
	signal: AbortSignal;
}

/**
 * Does the work of one job. What it returns, or its promise resolves to, is encoded as JSON: at most 1 MiB, nested at most
 * 64 deep.
 *
 * | handler | the job |
 * |---|---|
 * | returns | is complete, with the result |
 * | returns a result that cannot be reported | has failed: it is done, and would be done again |
 * | throws, or its promise rejects | is queued again with backoff while attempts remain, else failed |
 * | throws Permanent | has failed |
 * | throws RetryAfter | is queued again after its delay while attempts remain, else failed |
 * | throws, and the job was cancelled | is cancelled |
 * | ends in any way after the job's timeout_ms | as if it threw, unless its report comes before the manager ends the attempt |
 * | ends in any way after the lease was lost | is with another worker already; nothing is reported |
 *
 * Delivery is at least once: a worker that crashes, or that loses its lease, may have done the work already. So a handler
 * must be idempotent, with the job's id as the key. `idempotent` of "@oncegate/client/handlertest" tests that.
 *
 * A handler that computes for longer than a third of the lease without a pause stops the heartbeats of all jobs: move such
 * work to a worker thread.
 */
export type Handler<Payload = any> = (job: Job<Payload> & { payload: Payload }, context: HandlerContext) => unknown;

/** Options of a Worker. */
export interface WorkerOptions {
	/** Maps a function to the handler of its jobs: 1 to 100. */
	handlers: Record<string, Handler>;
	/** Name under which the worker claims: up to 128 visible ASCII characters. Default: host name, process id, a random part. */
	name?: string;
	/**
	 * Bounds the handlers that run at the same time: 1 to 1000, default 10. Up to four times as many more jobs wait for the
	 * manager to record how their handlers ended, so a slow store does not keep handlers idle.
	 */
	concurrency?: number;
	/**
	 * Lease of the jobs: 100 ms to 24 h, default 30 s. The worker extends it after every third of it. When the worker crashes,
	 * its jobs are delivered again after it.
	 *
	 * Only the manager ends a lease. While it cannot be reached, handlers continue, and for an hour and two leases after a
	 * handler returned the worker tries to report that.
	 */
	leaseMs?: number;
	/** How long a claim waits while there are no jobs: at most 5 min, default 20 s. */
	waitMs?: number;
	/** How long running handlers continue after a stop before their signals end: default 30 s. */
	stopTimeoutMs?: number;
	/** How long they then have to return: default 5 s. */
	stopGraceMs?: number;
	/** Receives errors and warnings; default: console. */
	logger?: Logger;
}

/** How many times as many jobs as there may be handlers wait for their outcome to be recorded. */
const maxReporting = 4;

/** How long a claim waits for its answer after the worker was stopped. */
const leaveMs = 2_000;

/** Claims jobs and runs handlers. Make it with `client.worker`. */
export class Worker {
	/** Name under which the worker claims. */
	readonly name: string;
	readonly #caller: Caller;
	readonly #handlers: Map<string, Handler>;
	readonly #concurrency: number;
	readonly #leaseMs: number;
	readonly #waitMs: number;
	readonly #stopTimeoutMs: number;
	readonly #stopGraceMs: number;
	readonly #logger: Logger;
	readonly #contact: Contact;
	readonly #reporter: Reporter;
	/** One for each handler that runs, or that the claim under way may bring. */
	readonly #slots: Slots;
	/** One for each outcome that is being reported. */
	readonly #reporting: Slots;
	readonly #tasks = new Set<Promise<void>>();
	/** They end the handlers' signals. */
	readonly #jobs = new Set<AbortController>();
	/** Ends with the time that running handlers have after a stop. */
	readonly #work = new AbortController();
	#handling = 0;
	#ran = false;

	/** @internal */
	constructor(caller: Caller, o: WorkerOptions) {
		this.#caller = caller;
		this.#handlers = new Map(Object.entries(o.handlers));
		if (this.#handlers.size < 1 || this.#handlers.size > 100) {
			throw new RangeError(`handlers for ${this.#handlers.size} functions: must be 1 to 100`);
		}
		for (const [name, handler] of this.#handlers) {
			if (!/^[A-Za-z0-9_.:~-]{1,128}$/.test(name) || /^\.\.?$/.test(name) || typeof handler !== "function") {
				throw new RangeError(`handlers[${quote(name)}]: needs a handler, and a name of 1 to 128 letters, digits and _ . : - ~`);
			}
		}
		this.#concurrency = o.concurrency ?? 10;
		if (!Number.isInteger(this.#concurrency) || this.#concurrency < 1 || this.#concurrency > 1000) {
			throw new RangeError(`concurrency ${this.#concurrency}: must be 1 to 1000`);
		}
		this.#leaseMs = bounded("leaseMs", o.leaseMs ?? 30_000, 100, 86_400_000);
		this.#waitMs = bounded("waitMs", o.waitMs ?? 20_000, 1, 300_000);
		this.#stopTimeoutMs = bounded("stopTimeoutMs", o.stopTimeoutMs ?? 30_000, 1, 86_400_000);
		this.#stopGraceMs = bounded("stopGraceMs", o.stopGraceMs ?? 5_000, 1, 86_400_000);
		this.#logger = o.logger ?? console;
		this.name = o.name ?? workerName();
		if (!visible(this.name, 1, 128)) throw new RangeError(`name ${quote(this.name)}: must be 1 to 128 visible ASCII characters`);
		this.#contact = new Contact(this.#logger, this.name);
		this.#reporter = new Reporter(caller, this.#logger, this.#leaseMs);
		this.#slots = new Slots(this.#concurrency);
		this.#reporting = new Slots(maxReporting * this.#concurrency);
	}

	/**
	 * Claims and handles jobs until the signal is aborted. Then it claims no more and waits for the running handlers: for
	 * stopTimeoutMs undisturbed, and for stopGraceMs after their signals ended. Jobs whose handlers give up, and jobs that a
	 * claim still brings, return to the queue, and their attempts do not count. It resolves when all handlers have returned
	 * and been reported, and otherwise rejects with an error that says how many have not. It must be called only once.
	 */
	async run(stop: AbortSignal): Promise<void> {
		if (this.#ran) throw new Error("run: a worker runs only once");
		this.#ran = true;
		const claiming = this.#claimLoop(stop);
		this.#start(claiming);
		try {
			await Promise.race([aborted(stop), claiming]);
			const drained = this.#drained();
			if (await within(this.#stopTimeoutMs, drained)) return;
			this.#giveUp();
			if (await within(this.#stopGraceMs, drained)) return;
			throw new Error(`worker ${this.name} stopped, but ${this.#handling} handlers did not return, ` +
				`and ${this.#reporting.taken} outcomes were not recorded`);
		} finally {
			this.#giveUp();
			this.#reporter.end();
		}
	}

	/** Adds a task that the end of run waits for. */
	#start(task: Promise<void>): void {
		const done = task.catch((err: unknown) => {
			this.#logger.error("oncegate: worker failed", { worker: this.name, error: String(err) });
		}).finally(() => this.#tasks.delete(done));
		this.#tasks.add(done);
	}

	async #drained(): Promise<void> {
		while (this.#tasks.size > 0) await Promise.all(this.#tasks);
	}

	/** Ends the signals of all handlers, and the claim. */
	#giveUp(): void {
		this.#work.abort();
		for (const job of this.#jobs) job.abort(new WorkerStoppingError());
	}

	/** Repeatedly claims as many jobs as there are free slots, and starts them, until stop. It also starts what its last claim brings. */
	async #claimLoop(stop: AbortSignal): Promise<void> {
		const log = this.#contact.loop("claim failed, trying again");
		let failures = 0;
		let early = 0;
		while (await this.#slots.take(stop)) {
			await turn(); // Other handlers may be returning right now.
			const free = 1 + this.#slots.takeAll();
			const asked = Date.now();
			let jobs: Job[] = [];
			let failed: unknown;
			try {
				jobs = await this.#claim(stop, free);
			} catch (err) {
				failed = err;
			}
			if (jobs.length > free) { // Not what was asked for: their leases will run out.
				this.#logger.error("oncegate: the manager answered a claim with too many jobs", { asked: free, got: jobs.length });
				jobs = jobs.slice(0, free);
			}
			this.#slots.give(free - jobs.length);
			for (const job of jobs) this.#start(this.#process(job, stop));
			if (failed === undefined) {
				log(asked);
				failures = 0;
				if (jobs.length > 0 || Date.now() - asked > this.#waitMs / 2) {
					early = 0;
					continue;
				}
				// A manager that is stopping answers claims immediately, and must not be asked continuously.
				await pause(this.#caller.backoff(++early), stop);
			} else if (!stop.aborted) {
				log(asked, failed);
				await pause(this.#caller.backoff(++failures, failed), stop);
			}
		}
	}

	/**
	 * Asks for jobs until stop, and takes the answer that is on its way then: a request that is cancelled loses the jobs that
	 * the manager has just leased to it. It announces that it leaves, and the manager answers immediately, with the jobs that
	 * are leased or with none. After leaveMs without an answer the request is cancelled, and the manager puts back what it
	 * leases to it.
	 */
	async #claim(stop: AbortSignal, limit: number): Promise<Job[]> {
		const ending = new AbortController();
		const end = (): void => ending.abort();
		let timer: NodeJS.Timeout | undefined;
		const leave = (): void => {
			timer = setTimeout(end, leaveMs);
		};
		if (stop.aborted) leave();
		stop.addEventListener("abort", leave);
		this.#work.signal.addEventListener("abort", end);
		try {
			const request = { worker: this.name, functions: [...this.#handlers.keys()], limit, lease_ms: this.#leaseMs, wait_ms: this.#waitMs };
			return await claim(this.#caller, request, { signal: ending.signal, timeoutMs: Infinity }, { leave: stop });
		} finally {
			clearTimeout(timer);
			stop.removeEventListener("abort", leave);
			this.#work.signal.removeEventListener("abort", end);
		}
	}

	/** Runs one job and reports it, or hands it back after a stop. It gives back the job's slot. */
	async #process(job: Job, stop: AbortSignal): Promise<void> {
		let held = this.#slots;
		try {
			if (!job.lease?.token) {
				this.#logger.error("oncegate: the manager sent a job without a lease", { job: job.id });
			} else if (stop.aborted) {
				await this.#reporter.handBack(job);
			} else {
				await this.#handle(job, async () => { // The next handler may run.
					if (!await this.#reporting.take(this.#reporter.ending)) return;
					held.give();
					held = this.#reporting;
				});
			}
		} finally {
			held.give();
		}
	}

	/** Runs one job and reports it. It calls returned between the two, unless there is nothing to report. */
	async #handle(job: Job, returned: () => Promise<void>): Promise<void> {
		const ending = new AbortController();
		if (this.#work.signal.aborted) ending.abort(new WorkerStoppingError());
		this.#jobs.add(ending);
		const timer = job.timeout_ms ? setTimeout(() => ending.abort(new JobTimeoutError()), job.timeout_ms) : undefined;
		const stopBeats = keepLease(this.#caller, this.#contact, job, this.#leaseMs, ending);
		try {
			this.#handling++;
			const outcome = await outcomeOf(this.#handlers.get(job.function), job, { signal: ending.signal });
			this.#handling--;
			clearTimeout(timer);
			const reason: unknown = ending.signal.aborted ? ending.signal.reason : undefined;
			if (reason instanceof LeaseLostError) {
				this.#logger.warn("oncegate: the lease was lost: the outcome is not reported", { job: job.id, function: job.function });
				return;
			}
			await returned();
			await this.#reporter.report(job, outcome, reason);
		} finally {
			this.#jobs.delete(ending);
			await stopBeats();
		}
	}
}

/** Makes a name by which people can recognize the worker of a lease. */
function workerName(): string {
	const host = hostname().replace(/[^!-~]/g, "_").slice(0, 80);
	return `${host}:${process.pid}:${randomBytes(4).toString("hex")}`;
}

function bounded(name: string, value: number, least: number, most: number): number {
	if (!(Number.isInteger(value) && value >= least && value <= most)) {
		throw new RangeError(`${name} ${value}: must be a whole number from ${least} to ${most} milliseconds`);
	}
	return value;
}
