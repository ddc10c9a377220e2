// Package client talks to a manager: it submits jobs and events at most once,
// waits for results, runs workers, gives operators their calls, and makes the
// calls of a gate for programs that are one (Ledger).
//
// # At most once
//
// SubmitIdempotent, WaitIdempotent and SendIdempotent draw an idempotency key
// (see Keys) or take the caller's, and then repeat the call with that key until
// it has an answer: after a lost connection, a timeout or an overloaded manager
// nobody knows whether the first attempt got through, and with the same key it
// does not matter. The manager, or the gate in front of it, executes the
// submission once and gives every attempt the first answer.
//
// An error with the code api.CodeOutcomeUnknown says that the first attempt may have been
// executed and that nobody knows how it ended. It is not repeated: the caller looks up
// what became of it, and does not submit again under another key.
//
// A program that may itself crash between two attempts keeps the key where it
// keeps the work, and passes it in.
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
//	an error, panics        is queued again with backoff while attempts remain, else failed
//	Permanent(err)          has failed
//	RetryAfter(err, d)      is queued again after d while attempts remain, else failed
//	an error, and the job   is cancelled
//	was cancelled
//	anything, and the       is with another worker already; nothing is reported
//	lease was lost
//
// Delivery is at least once: a worker that crashes, or that loses its lease, may
// have done the work already. Handlers are therefore idempotent, with Job.ID as
// the key; package workertest helps to test that.
package client
