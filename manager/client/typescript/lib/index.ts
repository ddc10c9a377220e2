/**
 * Client and worker of an Oncegate manager.
 *
 * `Client.submit` sends a submission with an idempotency key until it has an answer. After a lost connection, a timeout or
 * an overloaded manager it is unknown whether the first attempt got through; with the same key that does not matter.
 *
 * A `ManagerError` with the code `outcome-unknown` says that the first attempt may have been executed and that its outcome
 * is unknown. The client does not repeat the call. The caller must find out what happened, and must not submit again under
 * another key.
 *
 * A program that may crash between two attempts stores the key with its work, and passes it in.
 *
 * @module
 */
export { Client, type BatchAnswer, type ClientOptions } from "./client.js";
export type { CallOptions } from "./caller.js";
export * from "./errors.js";
export { Keys } from "./keys.js";
export { Ledger } from "./ledger.js";
export { Schedules } from "./schedules.js";
export type * from "./types.js";
export { Worker, type Handler, type HandlerContext, type Logger, type WorkerOptions } from "./worker.js";
