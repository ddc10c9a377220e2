// Submits a job at most once and waits for its end, as the program in Go beside it does with --wait.
//
//	npx tsc --module nodenext submit.ts && node submit.js FUNCTION PAYLOAD KEY
//
// PAYLOAD is JSON, KEY the idempotency key. The same again is answered the same, and runs once. ONCEGATE_URL is the manager's URL.
// The client of release 0.1.0: npm install ./oncegate-0.1.0-npm.tgz

import { Client, ManagerError } from "@oncegate/client";

const [name, payload, key] = process.argv.slice(2);
if (!name || !payload || !key) {
	console.error("usage: node submit.js FUNCTION PAYLOAD KEY");
	process.exit(2);
}
const client = new Client({ url: process.env["ONCEGATE_URL"] ?? "http://127.0.0.1:8090" });
try {
	const job = await client.submitAndWait({ function: name, payload: JSON.parse(payload), idempotency_key: key });
	console.log(job.state, JSON.stringify(job.result), job.replayed ? "replayed" : "new");
	process.exitCode = job.state === "complete" ? 0 : 1;
} catch (err) {
	if (!(err instanceof ManagerError)) throw err; // It is unknown whether there is a job. The same again finds out.
	console.error(err.message); // The manager's refusal, or outcome-unknown: do not take another key.
	process.exitCode = 1;
} finally {
	client.close();
}
