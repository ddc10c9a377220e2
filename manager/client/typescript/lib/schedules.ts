import { isObject, notOurs, page, type Call, type CallOptions, type Caller } from "./caller.js";
import { jobOf } from "./jobs.js";
import type { Keys } from "./keys.js";
import type { Job, PageQuery, Schedule, SchedulePage, ScheduleSpec } from "./types.js";

/** The calls on schedules, which a manager may require the rights of an operator for. */
export class Schedules {
	readonly #caller: Caller;
	readonly #keys: Keys;

	/** @internal */
	constructor(caller: Caller, keys: Keys) {
		this.#caller = caller;
		this.#keys = keys;
	}

	/** Makes a schedule, or replaces what it enqueues and when. A schedule that is paused stays so. */
	put(name: string, spec: ScheduleSpec, options?: CallOptions): Promise<Schedule> {
		return this.#schedule({ method: "PUT", path: schedulePath(name), body: spec }, options);
	}

	/** Returns a schedule. */
	get(name: string, options?: CallOptions): Promise<Schedule> {
		return this.#schedule({ method: "GET", path: schedulePath(name) }, options);
	}

	/** Returns one page of schedules, in order of their names and without payloads. */
	list(query: PageQuery = {}, options?: CallOptions): Promise<SchedulePage> {
		return page(this.#caller, "/v1/schedules", query, "schedules", options);
	}

	/** Removes a schedule. Its jobs stay. `not-found` after a repetition says that an earlier attempt removed it. */
	async delete(name: string, options?: CallOptions): Promise<void> {
		await this.#schedule({ method: "DELETE", path: schedulePath(name) }, options);
	}

	/** Stops a schedule. */
	pause(name: string, options?: CallOptions): Promise<Schedule> {
		return this.#schedule({ method: "POST", path: `${schedulePath(name)}/pause` }, options);
	}

	/** Starts a paused schedule again, with the first instant from now on. */
	resume(name: string, options?: CallOptions): Promise<Schedule> {
		return this.#schedule({ method: "POST", path: `${schedulePath(name)}/resume` }, options);
	}

	/** Enqueues a schedule's job now. All calls with the same key enqueue one; the key is drawn from the client's when absent. */
	async run(name: string, key = this.#keys.next(), options?: CallOptions): Promise<Job & { replayed: boolean }> {
		const call: Call = { method: "POST", path: `${schedulePath(name)}/run`, key };
		const { value, replayed } = await this.#caller.call(call, options);
		return { ...jobOf(call, value), replayed };
	}

	async #schedule(call: Call, options: CallOptions | undefined): Promise<Schedule> {
		const { value } = await this.#caller.call(call, options);
		if (!isObject(value) || !value["name"] || !value["cron"]) throw notOurs(call, "no schedule");
		return value as unknown as Schedule;
	}
}

function schedulePath(name: string): string {
	return `/v1/schedules/${encodeURIComponent(name)}`;
}
