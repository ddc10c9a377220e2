import * as http from "node:http";
import * as https from "node:https";
import type { Socket } from "node:net";

import { BadAnswerError, ConnectionError } from "./errors.js";

/** Bounds an answer: a full claim or page, with its frame. */
const maxAnswer = 32 << 20;

/** Bounds the time in which a connection is made. */
const connectMs = 5_000;

/** Where a manager is: the parts of its URL as node:http takes them. */
export interface Base {
	protocol: "http:" | "https:";
	target: { host: string; port: string } | { socketPath: string };
	/** Prefix of all paths, without a slash at its end. */
	prefix: string;
}

/** One HTTP request. */
export interface Exchange {
	/** Says in errors which call it is. */
	what: string;
	method: string;
	path: string;
	headers: Record<string, string>;
	body: Buffer | undefined;
	/** Bounds the time until the answer begins. */
	answerMs: number;
	/** Bounds the time for each further part of the answer. */
	partMs: number;
	/** Ends the request. */
	signal: AbortSignal;
	/** Ends the manager's wait. It closes the sending half of the connection, and the answer still comes. */
	leave: AbortSignal | undefined;
}

/** The answer to an HTTP request. */
export interface HttpAnswer {
	status: number;
	headers: http.IncomingHttpHeaders;
	body: Buffer;
}

/** Sends one request and reads its answer. It rejects with a ConnectionError when there is none. */
export function exchange(base: Base, agent: http.Agent, e: Exchange): Promise<HttpAnswer> {
	return new Promise((resolve, reject) => {
		const secure = base.protocol === "https:";
		const req = (secure ? https : http).request({ ...base.target, agent, method: e.method, path: base.prefix + e.path, headers: e.headers });
		let timer: NodeJS.Timeout | undefined;
		let socket: Socket | undefined;
		let sent = false;
		let ended = false;

		const end = (): void => {
			ended = true;
			clearTimeout(timer);
			e.signal.removeEventListener("abort", abort);
			e.leave?.removeEventListener("abort", leave);
		};
		const fail = (err: Error): void => {
			if (ended) return; // The agent may have given the connection to another request.
			end();
			reject(err);
			req.destroy();
		};
		const broken = (err: Error): void => fail(new ConnectionError(`${e.what}: ${err.message}`, { cause: err }));
		const within = (ms: number, what: string): void => {
			if (ended) return;
			clearTimeout(timer);
			timer = setTimeout(() => fail(new ConnectionError(`${e.what}: ${what} within ${ms} ms`)), ms);
		};
		const abort = (): void => fail(new ConnectionError(`${e.what}: aborted`));
		const leave = (): void => {
			if (sent) socket?.end();
		};

		req.on("error", broken);
		req.on("socket", (s) => {
			socket = s;
			const connected = (): void => within(e.answerMs, "no answer");
			if (s.connecting) {
				within(Math.min(connectMs, e.answerMs), "no connection");
				s.once(secure ? "secureConnect" : "connect", connected);
			} else {
				connected();
			}
		});
		req.on("finish", () => {
			sent = true;
			if (e.leave?.aborted) leave();
		});
		const closed = (): void => broken(new Error("the connection was closed"));
		req.on("close", closed);
		req.on("response", (res) => {
			req.off("close", closed); // The connection may be closed while the answer is still being read.
			e.leave?.removeEventListener("abort", leave); // The answer is coming already.
			const parts: Buffer[] = [];
			let size = 0;
			within(e.partMs, "no further part of the answer");
			res.on("data", (part: Buffer) => {
				parts.push(part);
				size += part.length;
				if (size > maxAnswer) {
					fail(new BadAnswerError(`${e.what}: answer of more than ${maxAnswer} bytes`));
					return;
				}
				within(e.partMs, "no further part of the answer");
			});
			res.on("error", broken);
			res.on("close", closed);
			res.on("end", () => {
				end();
				resolve({ status: res.statusCode ?? 0, headers: res.headers, body: Buffer.concat(parts) });
			});
		});

		within(e.answerMs, "no connection");
		if (e.signal.aborted) {
			abort();
			return;
		}
		e.signal.addEventListener("abort", abort);
		e.leave?.addEventListener("abort", leave);
		req.end(e.body);
	});
}
