import { randomBytes } from "node:crypto";
import { link, mkdir, open, readFile, unlink } from "node:fs/promises";
import { dirname, join } from "node:path";

/** Leaves room for the sequence and the nonce in a key of 255 characters. */
const maxClientId = 217;

/**
 * Makes idempotency keys `{client_id}:{sequence}:{nonce}`. The sequence grows with every key. The nonce is random for every
 * `Keys`, so a program that restarts, or another one with the same client id, never repeats a key.
 */
export class Keys {
	/** The first part of every key. */
	readonly clientId: string;
	readonly #nonce = randomBytes(8).toString("hex");
	#sequence = 0;

	/** @param clientId 1 to 217 visible ASCII characters, colons included, for example `host1.dc1:12345`; default random */
	constructor(clientId = randomId()) {
		if (!visible(clientId, 1, maxClientId)) {
			throw new RangeError(`client id ${quote(clientId)}: must be 1 to ${maxClientId} visible ASCII characters`);
		}
		this.clientId = clientId;
	}

	/**
	 * Makes keys with the client id in the file, so a program keeps its id over restarts. If there is no file, it is created,
	 * and its directory, with a random id. Two programs that start at the same time and share the file get the same id.
	 */
	static async open(file: string): Promise<Keys> {
		for (let tries = 0; tries < 3; tries++) {
			let id: string;
			try {
				id = await readFile(file, "utf8");
			} catch (err) {
				if (!isCode(err, "ENOENT")) throw err;
				await createId(file);
				continue;
			}
			try {
				return new Keys(id.trim());
			} catch (err) {
				throw new RangeError(`${file}: ${(err as Error).message}`);
			}
		}
		throw new Error(`${file}: the client id vanishes as soon as it is made`);
	}

	/** Returns a new key. */
	next(): string {
		return `${this.clientId}:${++this.#sequence}:${this.#nonce}`;
	}
}

function randomId(): string {
	return `client-${randomBytes(8).toString("hex")}`;
}

/** Creates the file complete or not at all: another program must not read half an id. A file that exists stays. */
async function createId(file: string): Promise<void> {
	await mkdir(dirname(file), { recursive: true, mode: 0o700 });
	const temporary = join(dirname(file), `.client-id-${randomBytes(8).toString("hex")}`);
	const f = await open(temporary, "wx", 0o600);
	try {
		try {
			await f.writeFile(randomId() + "\n");
			await f.sync();
		} finally {
			await f.close();
		}
		await link(temporary, file);
	} catch (err) {
		if (!isCode(err, "EEXIST")) throw err;
	} finally {
		await unlink(temporary);
	}
}

function isCode(err: unknown, code: string): boolean {
	return (err as NodeJS.ErrnoException).code === code;
}

/** Reports whether text has min to max characters, all of them visible ASCII. */
export function visible(text: string, min: number, max: number): boolean {
	return text.length >= min && text.length <= max && /^[!-~]*$/.test(text);
}

/** The beginning of a text for an error. */
export function quote(text: string): string {
	return JSON.stringify(text.slice(0, 64));
}

/**
 * Reads an idempotency key as a header carries it: bare, or as an RFC 8941 string in quotes. `wrong` says what is wrong with
 * it, and is empty if nothing is. A bare key with a comma is refused, since a proxy makes such lists of two headers.
 */
export function headerKey(header: string): { key: string; wrong: string } {
	let key = header.replace(/^[ \t]+|[ \t]+$/g, "");
	if (key.startsWith('"')) {
		const quoted = /^"((?:[^"\\]|\\["\\])*)"(?:;.*)?$/s.exec(key);
		if (!quoted) return { key, wrong: "must be one RFC 8941 string in quotes" };
		key = quoted[1]!.replace(/\\(.)/gs, "$1");
	} else if (key.includes(",")) {
		return { key, wrong: "must be one key, in quotes if it has a comma" };
	}
	const valid = key.length >= 1 && key.length <= 255 && /^[!-~]([ -~]*[!-~])?$/.test(key);
	return { key, wrong: valid ? "" : "must be 1 to 255 printable ASCII characters without a blank at either end" };
}
