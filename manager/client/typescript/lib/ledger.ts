import { randomUUID } from "node:crypto";

import { isObject, notOurs, type Call, type CallOptions, type Caller } from "./caller.js";
import type { Answer, Attempt, Entry, OutcomeRequest, RecordedAnswer, RenewRequest, Reservation, Reserved, ReserveRequest } from "./types.js";

/**
 * The calls about keys, for programs that run work of their own once: reserve the key, run the work, commit its outcome.
 * The same call with the same token is the same call, so all of them are repeated until they have an answer.
 */
export class Ledger {
	readonly #caller: Caller;

	/** @internal */
	constructor(caller: Caller) {
		this.#caller = caller;
	}

	/**
	 * Asks for the right to run a key's work. A ManagerError with the code `outcome-unknown` says that the work may have run,
	 * `fingerprint-mismatch` that the key was used for another request.
	 */
	async reserve(request: ReserveRequest, options?: CallOptions): Promise<Reservation> {
		const body = { ...request, token: request.token ?? randomUUID() };
		const call: Call = { method: "POST", path: "/v1/ledger/reserve", body, waitMs: request.wait_ms };
		const { value, retryAfterMs } = await this.#caller.call(call, options);
		if (isObject(value) && typeof value["expires_in_ms"] === "number") {
			const expires = { expires_in_ms: value["expires_in_ms"] };
			const { state, token, result } = value;
			if (state === "reserved" && typeof token === "string") return { state, token, ...expires };
			if (state === "pending") return { state, ...expires, retryAfterMs };
			if ((state === "committed" || state === "rejected") && isObject(result)) return { state, ...expires, result: decode(call, result) };
		}
		throw notOurs(call, "no reservation");
	}

	/** Extends a reservation, and returns it with the time for which it holds from now. */
	async renew(request: RenewRequest, options?: CallOptions): Promise<Reserved> {
		const call: Call = { method: "POST", path: "/v1/ledger/renew", body: request };
		const { value } = await this.#caller.call(call, options);
		if (!isObject(value) || value["state"] !== "reserved" || typeof value["expires_in_ms"] !== "number") throw notOurs(call, "no reservation");
		return { state: "reserved", token: request.token, expires_in_ms: value["expires_in_ms"] };
	}

	/** Records the answer of work that ran. A ManagerError with the code `fenced` says that another attempt has the key. */
	commit(request: OutcomeRequest, options?: CallOptions): Promise<void> {
		return this.#end("commit", "committed", { ...request, result: encodeAnswer(request.result) }, options);
	}

	/** Records the refusal of work that did not run. */
	reject(request: OutcomeRequest, options?: CallOptions): Promise<void> {
		return this.#end("reject", "rejected", { ...request, result: encodeAnswer(request.result) }, options);
	}

	/** Gives up a reservation whose work certainly did not run. The key is free again. */
	release(request: Attempt, options?: CallOptions): Promise<void> {
		return this.#end("release", "released", request, options);
	}

	/** Returns the ledger's record of a key. A ManagerError with the code `not-found` says that it has none. */
	async get(key: string, scope = "", options?: CallOptions): Promise<Entry> {
		const call: Call = { method: "GET", path: `/v1/ledger/entries/${encodeURIComponent(key)}${scope && `?scope=${encodeURIComponent(scope)}`}` };
		const { value } = await this.#caller.call(call, options);
		if (!isObject(value) || typeof value["key"] !== "string" || typeof value["state"] !== "string") throw notOurs(call, "no entry");
		const { result, ...entry } = value;
		return { ...entry, ...(isObject(result) && { result: decode(call, result) }) } as unknown as Entry;
	}

	async #end(name: string, state: string, body: object, options: CallOptions | undefined): Promise<void> {
		const call: Call = { method: "POST", path: `/v1/ledger/${name}`, body };
		const { value } = await this.#caller.call(call, options);
		if (!isObject(value) || value["state"] !== state) throw notOurs(call, `not ${state}`);
	}
}

function encodeAnswer(a: Answer): object {
	if (a.body === undefined) return a;
	const bytes = typeof a.body === "string" ? Buffer.from(a.body) : Buffer.from(a.body.buffer, a.body.byteOffset, a.body.byteLength);
	return { ...a, body: bytes.toString("base64") };
}

function decode(call: Call, result: Record<string, unknown>): RecordedAnswer {
	const { status, headers, body, body_omitted } = result;
	if (typeof status !== "number") throw notOurs(call, "a result without a status");
	return {
		status,
		headers: Array.isArray(headers) ? headers as [string, string][] : [],
		body: Buffer.from(typeof body === "string" ? body : "", "base64"),
		...(body_omitted === true && { body_omitted }),
	};
}
