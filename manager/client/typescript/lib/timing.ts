/** Waits for the given time or until the signal ends it, whichever is first. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
	return new Promise((resolve) => {
		if (signal.aborted) {
			resolve();
			return;
		}
		const end = (): void => {
			clearTimeout(timer);
			signal.removeEventListener("abort", end);
			resolve();
		};
		const timer = setTimeout(end, ms);
		signal.addEventListener("abort", end);
	});
}

/** Waits until everything that can run now has run. */
export function turn(): Promise<void> {
	return new Promise((resolve) => setImmediate(resolve));
}

/** Waits until the signal is aborted. */
export function aborted(signal: AbortSignal): Promise<void> {
	return new Promise((resolve) => {
		if (signal.aborted) resolve();
		else signal.addEventListener("abort", () => resolve(), { once: true });
	});
}

/** Waits for a promise for at most the given time, and reports whether it was fulfilled. */
export async function within(ms: number, promise: Promise<void>): Promise<boolean> {
	const late = new AbortController();
	try {
		return await Promise.race([promise.then(() => true), pause(ms, late.signal).then(() => false)]);
	} finally {
		late.abort(); // It ends the timer.
	}
}

/** Slots that a bounded number of tasks hold. Those that wait get them in their order. */
export class Slots {
	readonly size: number;
	#free: number;
	readonly #waiting: (() => void)[] = [];

	constructor(size: number) {
		this.size = size;
		this.#free = size;
	}

	get taken(): number {
		return this.size - this.#free;
	}

	/** Takes a slot once there is one. It reports false when the signal ended the wait. */
	async take(signal: AbortSignal): Promise<boolean> {
		while (this.#free === 0 && !signal.aborted) {
			await new Promise<void>((resolve) => {
				const end = (): void => {
					signal.removeEventListener("abort", end);
					resolve();
				};
				this.#waiting.push(end);
				signal.addEventListener("abort", end);
			});
		}
		if (signal.aborted) return false;
		this.#free--;
		return true;
	}

	/** Takes all free slots and returns their number. */
	takeAll(): number {
		const n = this.#free;
		this.#free = 0;
		return n;
	}

	/** Gives back slots. */
	give(n = 1): void {
		this.#free += n;
		for (const wake of this.#waiting.splice(0, n)) wake();
	}
}
