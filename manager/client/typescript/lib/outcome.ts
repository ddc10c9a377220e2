import { Permanent, RetryAfter, textOf } from "./errors.js";
import type { Job } from "./types.js";
import type { Handler, HandlerContext } from "./worker.js";

/** How a handler ended, in the form of a report. */
export interface Outcome {
	/** A copy of the result that has no code of the handler any more, and its size as JSON. */
	result?: { value: unknown; bytes: number };
	/** The handler's error; empty for a success. */
	failure: string;
	/** The work is done, so it must not run again, although there is a failure. */
	done: boolean;
	/** Another attempt would not help. */
	permanent: boolean;
	/** When the next attempt begins; absent: the manager decides. */
	delayMs?: number | undefined;
}

/** Begins the text of a success that becomes a failure. */
export const notReportable = "the work is done, but its result cannot be reported";

/** The manager's bound. */
const maxResult = 1 << 20;

/** Bounds reported errors; longer ones are cut. */
const maxErrorText = 32 << 10;

/** Runs the handler, and the code of its result and its error: whatever they do is this job's failure. */
export async function outcomeOf(handler: Handler | undefined, job: Job, context: HandlerContext): Promise<Outcome> {
	let result: unknown;
	try {
		if (!handler) throw new Error(`this worker has no handler for ${job.function}`);
		result = await handler(job as Job & { payload: unknown }, context);
	} catch (err) {
		return failed(err);
	}
	const done = { done: true, permanent: false };
	if (result === undefined) return { ...done, failure: "" };
	try {
		const text = JSON.stringify(result) as string | undefined;
		if (text === undefined) return { ...done, failure: `${notReportable}: a ${typeof result} is no JSON` };
		const bytes = Buffer.byteLength(text);
		if (bytes > maxResult) return { ...done, failure: `${notReportable}: ${bytes} bytes, at most ${maxResult} are kept` };
		return { ...done, failure: "", result: { value: JSON.parse(text) as unknown, bytes } };
	} catch (err) {
		return { ...done, failure: cut(`${notReportable}: ${safeText(err)}`) };
	}
}

function failed(err: unknown): Outcome {
	const outcome: Outcome = { failure: cut(safeText(err)), done: false, permanent: false };
	// The causes of an error count as well. Their number is bounded, since they may be a circle.
	for (let e = err, depth = 0; e instanceof Error && depth < 32; e = e.cause, depth++) {
		if (e instanceof Permanent) outcome.permanent = true;
		if (e instanceof RetryAfter && outcome.delayMs === undefined && Number.isFinite(e.delayMs)) {
			outcome.delayMs = Math.max(0, Math.ceil(e.delayMs));
		}
	}
	return outcome;
}

function safeText(err: unknown): string {
	try {
		return textOf(err);
	} catch {
		return "the handler threw a value that has no text";
	}
}

/** Bounds a reported text in bytes and makes it valid Unicode. It is never empty: an empty one would be a success. */
export function cut(text: string): string {
	let bytes = Buffer.from(text); // Halves of surrogate pairs become U+FFFD.
	if (bytes.length > maxErrorText) {
		let n = maxErrorText;
		while (n > 0 && (bytes[n]! & 0xc0) === 0x80) n--; // Not in the middle of a character.
		bytes = bytes.subarray(0, n);
	}
	return bytes.toString() || "an error without a text";
}
