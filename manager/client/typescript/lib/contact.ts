import { unreachable } from "./caller.js";

/** Receives log messages. The console is one. */
export interface Logger {
	info(message: string, fields: object): void;
	warn(message: string, fields: object): void;
	error(message: string, fields: object): void;
}

/** Logs how a call ended that was sent at the given time (Date.now): without err it succeeded. */
export type Log = (sent: number, err?: unknown) => void;

/** What a worker has logged about its manager. */
export class Contact {
	readonly #logger: Logger;
	readonly #worker: string;
	#lost = false;
	#changed = 0;

	constructor(logger: Logger, worker: string) {
		this.#logger = logger;
		this.#worker = worker;
	}

	/**
	 * Returns what a loop logs its calls with: once when the manager cannot be reached, once when it answers again, and any
	 * other error when it is not the last one of the same loop.
	 */
	loop(failed: string, fields: object = {}): Log {
		let last = "";
		return (sent, err) => {
			const lost = unreachable(err);
			const error = err === undefined ? "" : String(err);
			if (lost !== this.#lost && sent >= this.#changed) { // A call from before the change is no news.
				const was = this.#changed;
				this.#lost = lost;
				this.#changed = Date.now();
				if (lost) {
					this.#logger.warn("oncegate: the manager cannot be reached, trying again", { worker: this.#worker, error });
				} else {
					this.#logger.info("oncegate: the manager answers again", { worker: this.#worker, after_ms: this.#changed - was });
				}
			}
			if (lost) return;
			if (error && error !== last) this.#logger.warn(`oncegate: ${failed}`, { ...fields, worker: this.#worker, error });
			last = error;
		};
	}
}
