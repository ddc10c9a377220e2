// Package client talks to a manager: it submits jobs at most once,
// waits for results, runs workers, writes logs, and makes the calls of a gate for
// programs that are one (Ledger). Package admin has the calls of operators.
//
// # At most once
//
// SubmitIdempotent and WaitIdempotent use the caller's
// idempotency key, or draw one (see Keys). They repeat the call with that key
// until it has an answer. After a lost connection, a timeout or an overloaded
// manager it is unknown whether the first attempt got through; with the same key
// that does not matter. The manager, or the gate in front of it, executes the
// submission once and gives every attempt the first answer.
//
// An error with the code api.CodeOutcomeUnknown says that the first attempt may
// have been executed and that its outcome is unknown. The client does not repeat
// the call. The caller must find out what happened, and must not submit again
// under another key.
//
// A program that may crash between two attempts stores the key with its work, and
// passes it in.
//
// # Workers
//
// A Worker claims jobs of the functions it has handlers for, keeps their leases
// alive while they run, and reports how they ended:
//
//	handler returns         the job
//	nil error               is complete, with the result
//	nil error, and a        has failed: it is done, and would be done again
//	result that cannot be
//	reported
//	an error, panics,       is queued again with backoff while attempts remain, else failed
//	calls runtime.Goexit
//	Permanent(err)          has failed
//	RetryAfter(err, d)      is queued again after d while attempts remain, else failed
//	an error, and the job   is cancelled
//	was cancelled
//	after the job's         is queued again with backoff while attempts remain, else failed, unless
//	Timeout                 the report still comes before the manager ends the attempt
//	anything, and the       is with another worker already; nothing is reported
//	lease was lost
//
// Delivery is at least once: a worker that crashes, or that loses its lease, may
// have done the work already. So a handler must be idempotent, with Job.ID as the
// key. Package workertest tests that.
package client
