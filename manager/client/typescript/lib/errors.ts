/** Base of all errors of this library. */
export class OncegateError extends Error {
	/** Whether the same call may succeed later. A recorded answer is not temporary, nor is the code `record-unreadable`: an operator has to act. */
	readonly temporary: boolean = false;

	constructor(message: string, options?: ErrorOptions) {
		super(message, options);
		this.name = new.target.name;
	}
}

/** An answer that is not a success, from the manager or from a proxy on the way to it. */
export class ManagerError extends OncegateError {
	/** HTTP status. */
	readonly status: number;
	/** Names the problem. It is empty when the answer was not a problem document of the manager. */
	readonly code: ProblemCode | (string & {});
	/** Names the kind of problem for people. */
	readonly title: string;
	/** Says what is wrong. */
	readonly detail: string;
	/** How long the manager asks the caller to wait; 0 if it does not. */
	readonly retryAfterMs: number;
	/** The answer was recorded for an earlier attempt with the same key. Another attempt would get it again. */
	readonly replayed: boolean;
	override readonly temporary: boolean;

	constructor(p: { status: number; code?: string; title?: string; detail?: string; retryAfterMs?: number; replayed?: boolean }) {
		super(p.code ? `manager: ${p.code}: ${p.detail || p.title || ""}` : `manager: HTTP status ${p.status}: ${p.detail ?? ""}`);
		this.status = p.status;
		this.code = p.code ?? "";
		this.title = p.title ?? "";
		this.detail = p.detail ?? "";
		this.retryAfterMs = p.retryAfterMs ?? 0;
		this.replayed = p.replayed ?? false;
		// An operator has to act before the manager can read the record.
		const stays = this.replayed || this.code === "record-unreadable";
		this.temporary = !stays && (temporaryStatus.has(p.status) || this.code === "request-pending");
	}
}

const temporaryStatus = new Set([408, 425, 429, 500, 502, 503, 504]);

/** There was no answer: no connection, a connection that broke, or an answer that did not come in time. */
export class ConnectionError extends OncegateError {
	override readonly temporary = true;
}

/** A success that is not what a manager answers. The URL may lead to something else. */
export class BadAnswerError extends OncegateError {}

/** A call ended before it had an answer. It is open whether an attempt got through. */
abstract class CallEndedError extends OncegateError {
	/** The error of the last attempt before, if there was one. */
	lastError: Error | undefined;

	/** Adds what was known when the call ended. */
	after(last: Error | undefined): this {
		this.lastError = last;
		if (last) this.message += `, after ${last.message}`;
		return this;
	}
}

/** The call's AbortSignal ended it. Its `cause` is the signal's reason, its `name` "AbortError". */
export class CallAbortedError extends CallEndedError {
	constructor(what: string, reason: unknown) {
		super(`${what}: aborted`, { cause: reason });
		this.name = "AbortError";
	}
}

/** The call's timeoutMs ended it. Its `name` is "TimeoutError". */
export class CallTimeoutError extends CallEndedError {
	override readonly temporary = true;

	constructor(what: string, timeoutMs: number) {
		super(`${what}: no final answer within ${timeoutMs} ms`);
		this.name = "TimeoutError";
	}
}

/** The job was submitted, and the wait for its end failed. The caller may wait again by the job's id. */
export class WaitError extends OncegateError {
	readonly job: { readonly id: string };

	constructor(job: { readonly id: string }, cause: Error) {
		super(`job ${job.id} was submitted, but the wait for its end failed: ${cause.message}`, { cause });
		this.job = job;
	}
}

/** Reports whether err is an answer of the manager with this code. */
export function hasCode(err: unknown, ...codes: ProblemCode[]): err is ManagerError {
	return err instanceof ManagerError && (codes as string[]).includes(err.code);
}

/** Reason of a handler's signal: the job was cancelled. */
export class JobCancelledError extends OncegateError {
	constructor() {
		super("the job was cancelled");
	}
}

/** Reason of a handler's signal: another worker has the job, or will get it. */
export class LeaseLostError extends OncegateError {
	constructor() {
		super("the job's lease is lost");
	}
}

/** Reason of a handler's signal: the attempt has reached the job's timeout_ms. The manager queues the job again, or fails it. */
export class JobTimeoutError extends OncegateError {
	constructor() {
		super("the attempt has reached the job's timeout_ms");
	}
}

/** Reason of a handler's signal: the worker is stopping and its stopTimeoutMs is over. */
export class WorkerStoppingError extends OncegateError {
	constructor() {
		super("the worker is stopping");
	}
}

/** A handler throws it to let the job fail even if attempts remain. */
export class Permanent extends OncegateError {
	/** @param cause what went wrong: an error or a text */
	constructor(cause: unknown) {
		super(textOf(cause), { cause });
	}
}

/** A handler throws it to set when the next attempt begins, instead of the manager's backoff. */
export class RetryAfter extends OncegateError {
	/** 0 to 366 days. */
	readonly delayMs: number;

	/** @param cause what went wrong: an error or a text */
	constructor(cause: unknown, delayMs: number) {
		super(textOf(cause), { cause });
		this.delayMs = delayMs;
	}
}

/** The text of whatever was thrown. */
export function textOf(thrown: unknown): string {
	if (thrown instanceof Error) {
		const plain = thrown.name === "Error" || thrown instanceof Permanent || thrown instanceof RetryAfter;
		return plain ? thrown.message : `${thrown.name}: ${thrown.message}`;
	}
	return String(thrown);
}

/** The codes of problems. A later manager may have more. */
export type ProblemCode =
	| "invalid-request"
	| "invalid-key"
	| "key-required"
	| "unsupported-protocol"
	| "scope-ambiguous"
	| "durability-unavailable"
	| "unauthorized"
	| "forbidden"
	| "not-found"
	| "method-not-allowed"
	| "encoding-not-accepted"
	| "request-pending"
	| "outcome-unknown"
	| "fenced"
	| "duplicate-key"
	| "conflict"
	| "sequence-gap"
	| "too-many-logs"
	| "too-many-writers"
	| "answer-not-recorded"
	| "cursor-gone"
	| "too-large"
	| "unsupported-media"
	| "wrong-shard"
	| "wrong-ledger"
	| "key-moved"
	| "wrong-home"
	| "fingerprint-mismatch"
	| "payload-mismatch"
	| "not-written"
	| "internal"
	| "record-unreadable"
	| "body-mode-unavailable"
	| "logs-unsupported"
	| "manager-unavailable"
	| "unavailable"
	| "overloaded"
	| "large-answer"
	| "ledger-full"
	| "quarantine"
	| "window-full"
	| "home-unavailable"
	| "home-unanswered"
	| "insufficient-storage"
	| "queue-full"
	| "store-full"
	| "store-unreachable";
