// Submit a job once, work it, and run work of one's own once, with nothing but fetch.
//
//	npx tsc once.ts && node once.js URL KEY
//
// URL is the manager's. The token of ONCEGATE_TOKEN is sent if it is set.

declare const process: { argv: string[]; env: Record<string, string | undefined> };

interface Answer<T> { status: number; headers: Headers; body: T }
interface Problem { code?: string }
interface Job { id: string; state: string; attempt: number; payload: { to: string }; lease?: { token: string } }
interface Entry { state?: string; result?: { body: string } }

const [base, key] = process.argv.slice(2);
const attempts = 10;

/**
 * Makes a call until it has an answer.
 *
 * A lost answer says nothing about the work, so the same request goes again: the same key, the same bytes. 409
 * `request-pending` means that the first attempt is still running. 429 and 503 name a time to wait. An answer of a proxy
 * on the way may not be JSON.
 */
async function call<T>(method: string, path: string, body?: unknown, idempotencyKey?: string): Promise<Answer<T & Problem>> {
	const headers: Record<string, string> = { "Content-Type": "application/json" };
	if (idempotencyKey) headers["Idempotency-Key"] = idempotencyKey;
	if (process.env.ONCEGATE_TOKEN) headers["Authorization"] = `Bearer ${process.env.ONCEGATE_TOKEN}`;
	const request = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
	for (let attempt = 0; attempt < attempts; attempt++) {
		let wait = 0.1 * 2 ** attempt;
		try {
			const answer = await fetch(base + path, { ...request, signal: AbortSignal.timeout(60_000) });
			const again = [429, 502, 503, 504].includes(answer.status);
			const parsed = (again ? {} : await answer.json()) as T & Problem;
			if (!again && parsed.code !== "request-pending") {
				return { status: answer.status, headers: answer.headers, body: parsed };
			}
			wait = Number(answer.headers.get("Retry-After") ?? wait);
		} catch {
			// Refused, reset, timed out, or cut short.
		}
		await new Promise((resolve) => setTimeout(resolve, Math.min(wait, 5) * 1000));
	}
	throw new Error(`${method} ${path}: no answer after ${attempts} attempts`);
}

/** Submits a job. However often it is sent, there is one job. */
async function submit(): Promise<string> {
	const answer = await call<Job>("POST", "/v1/jobs", { function: "mail.send", payload: { to: "ann" } }, key);
	if (answer.status !== 202) throw new Error(`submit: ${answer.status} ${answer.body.code}`);
	console.log("submitted, replayed:", answer.headers.get("Idempotent-Replayed") ?? "false");
	return answer.body.id;
}

/** Claims a job, does it, and says so. The lease's token proves that no other worker has it now. */
async function work(id: string): Promise<void> {
	const claimed = await call<{ jobs: Job[] }>("POST", "/v1/jobs/claim", { functions: ["mail.send"], worker: "example", wait_ms: 10_000 });
	for (const job of claimed.body.jobs) {
		const finish = { lease_token: job.lease?.token, status: "complete", result: { sent: job.payload.to } };
		await call("POST", `/v1/jobs/${job.id}/finish`, finish);
	}
	const { body: job } = await call<Job>("GET", `/v1/jobs/${id}`);
	console.log("job:", job.state, "attempt", job.attempt);
}

/** Runs work of one's own once: reserves the key, does the work, and records what came of it. */
async function once(): Promise<void> {
	const token = crypto.randomUUID(); // one for this attempt
	const names = { key, scope: "shop/payments", token };
	const entry = await call<Entry>("POST", "/v1/ledger/reserve", { ...names, fingerprint: "amount=100", wait_ms: 10_000 });
	if (entry.body.state === "reserved") {
		const answer = JSON.stringify({ paid: 100 }); // the work
		const result = { status: 201, headers: [["content-type", "application/json"]], body: btoa(answer) };
		const committed = await call("POST", "/v1/ledger/commit", { ...names, result });
		if (committed.status !== 200) { // another attempt has taken the key, for example
			throw new Error(`it ran, and its outcome is not recorded: ${committed.status} ${committed.body.code}`);
		}
		console.log("executed:", answer);
	} else if (entry.body.state === "committed") {
		console.log("replayed:", atob(entry.body.result?.body ?? ""));
	} else { // another attempt runs, or its outcome is unknown: do not run it
		console.log("not run:", entry.status, entry.body.code ?? entry.body.state);
	}
}

async function main(): Promise<void> {
	const id = await submit();
	if (await submit() !== id) throw new Error("two jobs");
	await work(id);
	await once();
	await once();
}

void main();
