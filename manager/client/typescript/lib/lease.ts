import type { Caller } from "./caller.js";
import type { Contact } from "./contact.js";
import { CallAbortedError, hasCode, JobCancelledError, LeaseLostError } from "./errors.js";
import { heartbeat } from "./jobs.js";
import { pause } from "./timing.js";
import type { Job } from "./types.js";

/**
 * Sends a heartbeat every third of the lease, and more often after a failure, until the returned function is called. That
 * resolves when no heartbeat is in progress any more.
 *
 * It aborts `ending` when the manager says that the job is cancelled or the lease lost. Only the manager knows: while it
 * cannot be reached, its time may stand still for leases, so heartbeats without an answer end nothing.
 */
export function keepLease(caller: Caller, contact: Contact, job: Job, leaseMs: number, ending: AbortController): () => Promise<void> {
	const stop = new AbortController();
	const beatMs = leaseMs / 3;
	const log = contact.loop("heartbeat failed, trying again", { job: job.id });
	const beats = async (): Promise<void> => {
		let next = beatMs;
		for (;;) {
			await pause(next, stop.signal);
			if (stop.signal.aborted) return;
			const sent = Date.now();
			next = beatMs;
			try {
				const beat = await heartbeat(caller, job.id, job.lease!.token!, leaseMs, { signal: stop.signal, timeoutMs: Math.max(1, beatMs) });
				log(sent);
				if (beat.cancelled) ending.abort(new JobCancelledError());
			} catch (err) {
				if (err instanceof CallAbortedError) return;
				if (hasCode(err, "fenced")) {
					ending.abort(new LeaseLostError());
					return;
				}
				next = Math.max(beatMs / 8, 1);
				log(sent, err);
			}
		}
	};
	const beating = beats();
	return () => {
		stop.abort();
		return beating;
	};
}
