import * as http from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { TestContext } from "node:test";

import { Client, type ClientOptions } from "../lib/index.js";

/** A request as the fake manager got it. */
export interface Asked {
	method: string;
	path: string;
	headers: http.IncomingHttpHeaders;
	/** Parsed JSON; undefined without a body. */
	body: any;
	socket: Socket;
	/** Resolves when the caller has closed its half of the connection, or all of it. */
	left: Promise<void>;
}

/** What the fake manager answers: a status and a JSON body, or more. "cut" closes the connection, "hang" never answers. */
export type Told = { status?: number; body?: unknown; text?: string; headers?: Record<string, string> } | "cut" | "hang";

/** A small manager whose answers a test writes. */
export class Fake {
	readonly asked: Asked[] = [];
	answer: (asked: Asked, nth: number) => Told | Promise<Told>;
	readonly #server: http.Server;

	private constructor(answer: Fake["answer"]) {
		this.answer = answer;
		this.#server = http.createServer((req, res) => void this.#serve(req, res));
		(this.#server as http.Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true; // A caller that leaves gets its answer.
		this.#server.on("connection", (socket) => {
			socket.setNoDelay(true);
			socket.setMaxListeners(0); // Each request waits for its end.
		});
	}

	/** Starts one that ends with the test. */
	static async start(t: TestContext, answer: Fake["answer"]): Promise<Fake> {
		const fake = new Fake(answer);
		await new Promise<void>((resolve) => fake.#server.listen(0, "127.0.0.1", resolve));
		t.after(() => new Promise<void>((resolve) => {
			fake.#server.close(() => resolve());
			fake.#server.closeAllConnections();
		}));
		return fake;
	}

	get url(): string {
		return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
	}

	/** Makes a client of it with short pauses. */
	client(t: TestContext, o: Partial<ClientOptions> = {}): Client {
		const client = new Client({ url: this.url, backoffBaseMs: 1, backoffMaxMs: 5, ...o });
		t.after(() => client.close());
		return client;
	}

	/** The requests to a path so far. */
	to(path: string): Asked[] {
		return this.asked.filter((a) => a.path === path);
	}

	async #serve(req: http.IncomingMessage, res: http.ServerResponse): Promise<void> {
		const parts: Buffer[] = [];
		for await (const part of req) parts.push(part as Buffer);
		const text = Buffer.concat(parts).toString();
		const left = new Promise<void>((resolve) => {
			req.socket.once("end", resolve);
			req.socket.once("close", () => resolve());
		});
		const asked = { method: req.method!, path: req.url!, headers: req.headers, body: text === "" ? undefined : JSON.parse(text), socket: req.socket, left };
		this.asked.push(asked);
		const told = await this.answer(asked, this.asked.length);
		if (told === "hang") return;
		if (told === "cut") {
			req.socket.destroy();
			return;
		}
		const status = told.status ?? 200;
		res.writeHead(status, { "content-type": status < 400 ? "application/json" : "application/problem+json", ...told.headers });
		res.end(told.text ?? JSON.stringify(told.body));
	}
}

/** A problem of a manager. */
export function problem(status: number, code: string, headers: Record<string, string> = {}): Told {
	return { status, headers, body: { type: `urn:oncegate:problem:${code}`, title: "T", status, code, detail: "D" } };
}

/** A job of a manager. */
export function aJob(more: object = {}): { status: number; body: Record<string, unknown> } {
	return {
		status: 202,
		body: { id: "j1", function: "f", state: "queued", priority: 0, attempt: 0, max_attempts: 25, created_at: "2026-01-01T00:00:00Z", ...more },
	};
}

/** Resolves once the condition holds. */
export async function eventually(condition: () => boolean): Promise<void> {
	while (!condition()) await new Promise((resolve) => setTimeout(resolve, 1));
}
