import { isObject, notOurs, problemError, type Call, type CallOptions, type Caller } from "./caller.js";
import type { ManagerError } from "./errors.js";
import type { Beat, ClaimRequest, FinishRequest, Job, RetryRequest } from "./types.js";

// The calls about jobs that Client and Worker share.

/** What the worker's calls need besides the caller's options. */
export type Special = Pick<Call, "persistent" | "leave">;

/** The path of a job. */
export function jobPath(id: string): string {
	return `/v1/jobs/${encodeURIComponent(id)}`;
}

/** Reads an answer that must be a job. */
export function jobOf(call: Call, value: unknown): Job {
	if (!isObject(value) || typeof value["id"] !== "string" || typeof value["state"] !== "string" || !value["id"] || !value["state"]) {
		throw notOurs(call, "no job");
	}
	return value as unknown as Job;
}

/** Makes a call whose answer is a job. */
export async function job(caller: Caller, call: Call, options?: CallOptions): Promise<Job> {
	return jobOf(call, (await caller.call(call, options)).value);
}

export async function claim(caller: Caller, r: ClaimRequest, options?: CallOptions, special?: Special): Promise<Job[]> {
	const call: Call = { method: "POST", path: "/v1/jobs/claim", body: r, once: true, waitMs: r.wait_ms, ...special };
	const { value } = await caller.call(call, options);
	if (!isObject(value) || !Array.isArray(value["jobs"])) throw notOurs(call, "no list of jobs");
	return value["jobs"].map((j: unknown) => jobOf(call, j));
}

export async function heartbeat(caller: Caller, id: string, token: string, leaseMs?: number, options?: CallOptions): Promise<Beat> {
	const call: Call = { method: "POST", path: `${jobPath(id)}/heartbeat`, body: { lease_token: token, lease_ms: leaseMs }, once: true };
	const { value } = await caller.call(call, options);
	if (!isObject(value) || typeof value["expires_in_ms"] !== "number" || value["expires_in_ms"] <= 0) throw notOurs(call, "no lease");
	return { cancelled: value["cancelled"] === true, expires_in_ms: value["expires_in_ms"] };
}

export function finish(caller: Caller, r: FinishRequest, options?: CallOptions, special?: Special): Promise<Job> {
	const { id, ...body } = r;
	return job(caller, { method: "POST", path: `${jobPath(id)}/finish`, body, ...special }, options);
}

export async function finishMany(
	caller: Caller, requests: FinishRequest[], options?: CallOptions, special?: Special,
): Promise<(ManagerError | undefined)[]> {
	const call: Call = { method: "POST", path: "/v1/jobs/finish", body: { finishes: requests }, ...special };
	const { value } = await caller.call(call, options);
	const results: unknown = isObject(value) ? value["results"] : undefined;
	if (!Array.isArray(results) || results.length !== requests.length) throw notOurs(call, `not ${requests.length} results`);
	return results.map((result: unknown, i) => {
		const r = isObject(result) ? result : {};
		if (isObject(r["problem"])) return problemError(r["problem"]);
		if (r["id"] !== requests[i]!.id || !r["state"]) throw notOurs(call, `result ${i} is not of job ${requests[i]!.id}`);
		return undefined;
	});
}

export function retry(caller: Caller, id: string, r: RetryRequest, options?: CallOptions, special?: Special): Promise<Job> {
	if (!r.lease_token) throw new RangeError("lease_token: must be that of the job's lease");
	return job(caller, { method: "POST", path: `${jobPath(id)}/retry`, body: r, ...special }, options);
}
