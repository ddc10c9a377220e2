import { AssertionError } from "node:assert";
import { isDeepStrictEqual } from "node:util";

import { encode } from "./caller.js";
import { textOf } from "./errors.js";
import type { Handler } from "./worker.js";

/** How often `idempotent` runs the handler. */
export const runs = 3;

/**
 * Tests that a worker's handler is idempotent, as at-least-once delivery requires. It runs the handler three times with the
 * same job, like a manager that never learns how the earlier runs ended: the same id and payload, with a growing attempt.
 *
 * It rejects with an AssertionError when a run throws, or when after a later run check returns another state, or the handler
 * another result, than after the first run. check reads what the handler has changed (rows, files, mails sent) and returns
 * it as data that structuredClone copies.
 */
export async function idempotent(handler: Handler, payload: unknown, check: () => unknown): Promise<void> {
	const text = encode(payload, "payload");
	const created_at = new Date().toISOString();
	let first: { state: unknown; result: string } | undefined;
	for (let attempt = 1; attempt <= runs; attempt++) {
		const job = {
			id: "handlertest-1", function: "handlertest", state: "active" as const, priority: 0, attempt, max_attempts: 25, created_at,
			// Each delivery is decoded separately: a handler must not rely on changes that it made to the job in memory.
			payload: JSON.parse(text) as unknown,
			lease: { worker: "handlertest", token: `handlertest-${attempt}`, expires_in_ms: 30_000 },
		};
		let result: string;
		try {
			const returned: unknown = await handler(job, { signal: new AbortController().signal });
			result = returned === undefined ? "nothing" : encode(returned, "the result");
		} catch (err) {
			throw new AssertionError({ message: `run ${attempt} of ${runs} with the same job: ${textOf(err)}` });
		}
		const now = { state: structuredClone(await check()), result };
		first ??= now;
		if (!isDeepStrictEqual(first.state, now.state)) {
			const message = `run ${attempt} changed the state that the first run left`;
			throw new AssertionError({ message, expected: first.state, actual: now.state, operator: "deepStrictEqual" });
		}
		if (first.result !== now.result) {
			throw new AssertionError({ message: `run ${attempt} returned ${now.result}, the first one ${first.result}` });
		}
	}
}
