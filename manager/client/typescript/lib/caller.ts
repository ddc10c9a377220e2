import { setMaxListeners } from "node:events";
import * as http from "node:http";
import * as https from "node:https";
import { isDeepStrictEqual } from "node:util";

import { BadAnswerError, CallAbortedError, CallTimeoutError, ConnectionError, hasCode, ManagerError, OncegateError } from "./errors.js";
import { exchange, type Base, type Exchange, type HttpAnswer } from "./exchange.js";
import { headerKey, quote, visible } from "./keys.js";
import { pause } from "./timing.js";

/** The longest time that a timer of JavaScript takes. */
const maxTimer = 2 ** 31 - 1;

/** The manager's bound. */
const maxToken = 4096;

/** Connections are used again, and closed after 90 s without a call. */
const connections = { keepAlive: true, timeout: 90_000 };

/** Redirects that one attempt follows. */
const maxRedirects = 10;

/** Options of a single call. */
export interface CallOptions {
	/** Ends the call: it rejects with a CallAbortedError. */
	signal?: AbortSignal | undefined;
	/** Bounds the call with its repetitions, up to 24 days; `Infinity`: no bound. */
	timeoutMs?: number | undefined;
}

/** Options of a Caller. Client has their documentation. */
export interface CallerOptions {
	url: string;
	failover?: string[] | undefined;
	token?: string | undefined;
	agent?: http.Agent | undefined;
	timeoutMs?: number | undefined;
	attemptTimeoutMs?: number | undefined;
	backoffBaseMs?: number | undefined;
	backoffMaxMs?: number | undefined;
	maxRetryAfterMs?: number | undefined;
	maxAttempts?: number | undefined;
}

/** One call of the API. */
export interface Call {
	method: "GET" | "POST" | "PUT" | "DELETE";
	path: string;
	/** Encoded as JSON unless it is bytes. */
	body?: unknown;
	/** Idempotency key. */
	key?: string | undefined;
	traceparent?: string | undefined;
	/** How long the manager may let the call wait. */
	waitMs?: number | undefined;
	/** Do not repeat it. */
	once?: boolean;
	/** Repeat it whatever maxAttempts and maxRetryAfterMs say. */
	persistent?: boolean;
	/** Ends the manager's wait, and the answer still comes. */
	leave?: AbortSignal;
}

/** The answer to a call. */
export interface Reply {
	status: number;
	value: unknown;
	/** It was recorded for an earlier attempt. */
	replayed: boolean;
	/** How long the manager asks the caller to wait; 0 if it does not. */
	retryAfterMs: number;
}

/** Makes calls, and repeats them until they have an answer. */
export class Caller {
	readonly #bases: Base[];
	readonly #token: string | undefined;
	readonly #agents: { "http:": http.Agent; "https:": http.Agent };
	readonly #ownAgents: boolean;
	readonly #timeoutMs: number;
	readonly #attemptTimeoutMs: number;
	readonly #backoffBaseMs: number;
	readonly #backoffMaxMs: number;
	readonly #maxRetryAfterMs: number;
	readonly #maxAttempts: number;
	/** Index of the manager in use. */
	#at = 0;

	constructor(o: CallerOptions) {
		const failover = o.failover ?? [];
		if (failover.length > 15 || (failover.length > 0 && o.url.startsWith("unix:"))) {
			throw new RangeError(`failover of ${failover.length} URLs: must be at most 15, and none beside a unix: URL`);
		}
		this.#bases = [parseBase(o.url, true), ...failover.map((url) => parseBase(url, false))];
		if (o.token !== undefined && !visible(o.token, 1, maxToken)) {
			throw new RangeError(`token: must be 1 to ${maxToken} visible ASCII characters`);
		}
		this.#token = o.token;
		this.#timeoutMs = duration("timeoutMs", o.timeoutMs, 300_000, true);
		this.#attemptTimeoutMs = duration("attemptTimeoutMs", o.attemptTimeoutMs, 15_000);
		this.#backoffBaseMs = duration("backoffBaseMs", o.backoffBaseMs, 50);
		this.#backoffMaxMs = duration("backoffMaxMs", o.backoffMaxMs, 5_000);
		this.#maxRetryAfterMs = duration("maxRetryAfterMs", o.maxRetryAfterMs, Infinity, true);
		this.#maxAttempts = o.maxAttempts ?? Infinity;
		if (this.#maxAttempts !== Infinity && !(Number.isSafeInteger(this.#maxAttempts) && this.#maxAttempts >= 1)) {
			throw new RangeError(`maxAttempts ${this.#maxAttempts}: must be a whole number from 1, or Infinity`);
		}
		this.#ownAgents = o.agent === undefined;
		this.#agents = o.agent
			? { "http:": o.agent, "https:": o.agent }
			: { "http:": new http.Agent(connections), "https:": new https.Agent(connections) };
	}

	/** Closes the connections. Calls in progress end as if they were lost. */
	close(): void {
		if (!this.#ownAgents) return;
		this.#agents["http:"].destroy();
		this.#agents["https:"].destroy();
	}

	/** Repeats the call until it has a final answer. It does not repeat a call with `once`. */
	async call(call: Call, options: CallOptions = {}): Promise<Reply> {
		const what = `${call.method} ${call.path}`;
		const timeoutMs = duration("timeoutMs", options.timeoutMs, this.#timeoutMs, true);
		const body = call.body === undefined || Buffer.isBuffer(call.body) ? call.body : Buffer.from(encode(call.body, what));
		if (call.key !== undefined) {
			// A key that can never be sent must not be tried repeatedly.
			const { wrong } = headerKey(call.key);
			if (wrong) throw new RangeError(`idempotency key ${quote(call.key)}: ${wrong}`);
		}
		const ending = new AbortController();
		const abort = (): void => ending.abort(new CallAbortedError(what, options.signal?.reason));
		const timer = timeoutMs === Infinity ? undefined : setTimeout(() => ending.abort(new CallTimeoutError(what, timeoutMs)), timeoutMs);
		if (options.signal?.aborted) abort();
		// Many calls may have the same signal. Node before 22 warns of more than 10, as of a leak.
		if (options.signal instanceof AbortSignal) setMaxListeners(0, options.signal);
		options.signal?.addEventListener("abort", abort);
		try {
			return await this.#repeat(call, what, body, ending.signal);
		} finally {
			clearTimeout(timer);
			options.signal?.removeEventListener("abort", abort);
		}
	}

	/** Repeats the call until it has a final answer, or until ending has a reason to reject with. */
	async #repeat(call: Call, what: string, body: Buffer | undefined, ending: AbortSignal): Promise<Reply> {
		let last: Error | undefined;
		const checkEnd = (): void => {
			if (ending.aborted) throw (ending.reason as CallAbortedError | CallTimeoutError).after(last);
		};
		for (let attempt = 1; ; attempt++) {
			checkEnd();
			const i = this.#at;
			try {
				return await this.#attempt(this.#bases[i]!, call, what, body, ending);
			} catch (err) {
				// The end of the caller's own wait says nothing about the manager.
				const ownEnd = ending.aborted && (ending.reason instanceof CallAbortedError || Boolean(call.waitMs));
				const moved = !ownEnd && this.#moveOn(i, err);
				if (!(err instanceof OncegateError && err.temporary)) throw err;
				if (err instanceof ConnectionError) checkEnd();
				if (call.once || (!call.persistent && (attempt >= this.#maxAttempts || (!moved && this.#tooLate(err))))) throw err;
				last = err;
				if (!moved || attempt % this.#bases.length === 0) {
					const round = moved ? Math.floor((attempt - 1) / this.#bases.length) : attempt - 1;
					await pause(this.backoff(round + 1, err), ending);
				}
			}
		}
	}

	/** The pause in milliseconds after the given attempt (1 for the first) failed. */
	backoff(attempt: number, err?: unknown): number {
		const most = Math.min(this.#backoffMaxMs, this.#backoffBaseMs * 2 ** (attempt - 1));
		const d = most / 2 + (Math.random() * most) / 2;
		// A manager may be ready sooner than it says, for example after an operator has ended a quarantine.
		return err instanceof ManagerError ? Math.max(d, Math.min(err.retryAfterMs, 3_600_000)) : d;
	}

	/** Reports whether the manager asks for a longer wait than a call may take. */
	#tooLate(err: unknown): boolean {
		return err instanceof ManagerError && err.retryAfterMs > this.#maxRetryAfterMs;
	}

	/**
	 * Lets the next calls go to the manager after the i-th, which did not answer the call or said that it cannot work. It
	 * reports whether there is another one.
	 */
	#moveOn(i: number, err: unknown): boolean {
		if (this.#bases.length === 1 || !(unreachable(err) || hasCode(err, "unavailable"))) return false;
		if (this.#at === i) this.#at = (i + 1) % this.#bases.length;
		return true;
	}

	/**
	 * Sends a request, and follows redirects that keep its method. Others would make a GET of a submission, which lists jobs,
	 * and nothing would be submitted.
	 */
	async #follow(base: Base, e: Exchange): Promise<HttpAnswer> {
		for (let redirects = 0; ; redirects++) {
			const answer = await exchange(base, this.#agents[base.protocol], e);
			const to = redirects < maxRedirects ? redirected(answer, base, e.path) : undefined;
			if (!to) return answer;
			const { authorization: _, ...others } = e.headers; // The token is for the host of the client's URL.
			e = { ...e, path: to.path, headers: isDeepStrictEqual(to.base, { ...base, prefix: "" }) ? e.headers : others };
			base = to.base;
		}
	}

	async #attempt(base: Base, call: Call, what: string, body: Buffer | undefined, signal: AbortSignal): Promise<Reply> {
		const headers: Record<string, string> = {};
		if (body) {
			headers["content-type"] = "application/json";
			headers["content-length"] = String(body.length);
		}
		if (call.key !== undefined) headers["idempotency-key"] = call.key;
		if (call.traceparent) headers["traceparent"] = call.traceparent;
		if (this.#token) headers["authorization"] = `Bearer ${this.#token}`;
		const answer = await this.#follow(base, {
			what, method: call.method, path: call.path, headers, body, signal, leave: call.leave,
			answerMs: Math.min(this.#attemptTimeoutMs + (call.waitMs ?? 0), maxTimer), partMs: this.#attemptTimeoutMs,
		});
		const replayed = answer.headers["idempotent-replayed"] === "true";
		const retryAfterMs = retryAfter(answer.headers["retry-after"]);
		if (answer.status < 200 || answer.status > 299) throw readError(answer, replayed, retryAfterMs);
		try {
			return { status: answer.status, value: JSON.parse(answer.body.toString()) as unknown, replayed, retryAfterMs };
		} catch (err) {
			throw new BadAnswerError(`${what}: status ${answer.status} with an answer that is not of a manager: ${(err as Error).message}`);
		}
	}
}

/** Where a redirect leads, as a base and the path below it; undefined if it is none that may be followed. */
function redirected(answer: HttpAnswer, base: Base, path: string): { base: Base; path: string } | undefined {
	const { location } = answer.headers;
	if ((answer.status !== 307 && answer.status !== 308) || location === undefined || !("host" in base.target)) return undefined;
	const { host, port } = base.target;
	try {
		const url = new URL(location, `${base.protocol}//${host.includes(":") ? `[${host}]` : host}:${port}${base.prefix}${path}`);
		return { base: { ...parseBase(url.origin, false), prefix: "" }, path: url.pathname + url.search };
	} catch {
		return undefined;
	}
}

/** Reports whether a call had no answer of a manager: none at all, or one of a proxy that had none. */
export function unreachable(err: unknown): boolean {
	return err instanceof OncegateError && err.temporary && !(err instanceof ManagerError && err.code !== "");
}

/** Reports whether the manager rejected a request because of its content, so that a repetition cannot succeed. */
export function refused(err: unknown): err is ManagerError {
	return err instanceof ManagerError && (err.status === 400 || err.status === 413);
}

/** The error for a JSON answer that no manager would send. It must never count as a success. */
export function notOurs(call: Call, what: string): BadAnswerError {
	return new BadAnswerError(`${call.method} ${call.path}: an answer that is not of a manager: ${what}`);
}

/** Reports whether a value of JSON is an object. */
export function isObject(value: unknown): value is Record<string, unknown> {
	return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Encodes a value as JSON, and refuses what JSON would leave out. */
export function encode(value: unknown, what: string): string {
	const text = JSON.stringify(value) as string | undefined;
	if (text === undefined) throw new TypeError(`${what}: a ${typeof value} is no JSON`);
	return text;
}

/** Checks a duration in milliseconds and fills in its default. */
export function duration(name: string, value: number | undefined, byDefault: number, endless = false): number {
	value ??= byDefault;
	if (!(value >= 1 && value <= maxTimer) && !(endless && value === Infinity)) {
		throw new RangeError(`${name} ${value}: must be 1 to ${maxTimer} milliseconds${endless ? ", or Infinity" : ""}`);
	}
	return value;
}

function parseBase(text: string, unix: boolean): Base {
	if (unix && text.startsWith("unix:") && text.length > "unix:".length) {
		return { protocol: "http:", target: { socketPath: text.slice("unix:".length) }, prefix: "" };
	}
	let url: URL | undefined;
	try {
		url = new URL(text);
	} catch {
		// The check below says what is allowed.
	}
	// What new URL corrects silently, such as "http:host", is refused.
	if (!url || !/^https?:\/\/[^/]/i.test(text) || /[?#\s]/.test(text) || url.username || url.password) {
		throw new RangeError(
			`url ${quote(text)}: must be http:// or https:// with a host, for example http://127.0.0.1:8090${unix ? ", or unix:PATH" : ""}`);
	}
	return {
		protocol: url.protocol as Base["protocol"],
		target: { host: url.hostname.replace(/^\[|\]$/g, ""), port: url.port || (url.protocol === "https:" ? "443" : "80") },
		prefix: url.pathname.replace(/\/+$/, ""),
	};
}

function retryAfter(header: string | undefined): number {
	return /^[0-9]{1,9}$/.test(header ?? "") ? Number(header) * 1000 : 0;
}

function readError(answer: HttpAnswer, replayed: boolean, retryAfterMs: number): ManagerError {
	const text = answer.body.toString();
	if (answer.headers["content-type"]?.startsWith("application/problem+json")) {
		try {
			return problemError(JSON.parse(text), { status: answer.status, retryAfterMs, replayed });
		} catch {
			// It is not a problem of a manager.
		}
	}
	const to = answer.headers.location;
	const detail = to !== undefined && answer.status >= 300 && answer.status <= 399
		? `redirected to ${quote(to)}; the client's URL must lead to the manager itself`
		: JSON.stringify(text.slice(0, 200));
	return new ManagerError({ status: answer.status, detail, retryAfterMs, replayed });
}

/** Reads a problem document. It throws if value is none. */
export function problemError(value: unknown, more: { status?: number; retryAfterMs?: number; replayed?: boolean } = {}): ManagerError {
	if (!isObject(value)) throw new TypeError("a problem must be an object");
	const text = (name: string): string => (typeof value[name] === "string" ? value[name] as string : "");
	const status = typeof value["status"] === "number" ? value["status"] : 0;
	return new ManagerError({ status, code: text("code"), title: text("title"), detail: text("detail"), ...more });
}

/** Makes a call whose answer must be a page with this list. */
export async function page<Page>(caller: Caller, path: string, query: object, list: string, options?: CallOptions): Promise<Page> {
	const params = new URLSearchParams();
	for (const [name, value] of Object.entries(query)) {
		if (value !== undefined) params.set(name, String(value));
	}
	const call: Call = { method: "GET", path: `${path}?${params}` };
	const { value } = await caller.call(call, options);
	if (!isObject(value) || !Array.isArray(value[list]) || typeof value["cursor"] !== "string") throw notOurs(call, `no list of ${list}`);
	return value as Page;
}
