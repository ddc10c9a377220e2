// Package jobs is the job queue: at-most-once submission, atomic claiming and
// at-least-once execution, written once over store.Store.
//
// # States
//
//	             run_at ahead                  cancel
//	submit ──────────────────▶ scheduled ──────────────────▶ cancelled
//	   │                         │   ▲                       ▲  ▲  │
//	   │ run_at now       run_at │   │ retry with delay      │  │  │
//	   │                 reached │   │ (worker, operator)    │  │  │
//	   ▼                         ▼   │            cancel     │  │  │
//	   └──────────────────────▶ queued ──────────────────────┘  │  │
//	                            │  ▲ ▲                          │  │
//	                      claim │  │ └──────────────────────────┼──┤ retry
//	                            │  │ lease lost, attempts left; │  │ (operator)
//	                            ▼  │ worker's retry             │  │
//	                          active ──────────────────────────┘   │
//	                          │    │  finish cancelled; lease lost │
//	          finish complete │    │  or handed back after cancel  │
//	                          ▼    ▼                               │
//	                   complete   failed ──────────────────────────┘
//	                              finish failed; lease of the last attempt lost
//
// complete, failed and cancelled are terminal: a worker's call never changes
// them. Only an operator's retry brings a failed or cancelled job back. Terminal
// jobs are kept for questions until retention removes them, by age and by count.
//
// # Delivery
//
// A claim leases queued jobs to a worker. Which ones: the highest priority
// first, and among equals the one whose run_at came first (for a job submitted
// without delay that is its submission). Each delivery has a random token and
// counts as an attempt. While the lease holds nobody else gets the job; calls
// with another token are fenced off. A lease that runs out makes the job queued
// again with its old place in the order, or failed when it was the last attempt:
// a worker that crashes loses nothing, and a job that crashes its workers ends in
// the dead letters. Until it is taken back, a lease that ran out is still its
// worker's: a late finish reports what really happened. Time in which no manager
// served does not count, see package downtime.
//
// Execution is therefore at least once. A caller that needs exactly one effect makes the
// handler idempotent, with the job's id as the key.
//
// # Three kinds of deduplication
//
// They are independent of each other; in the order in which a submission meets
// them:
//
//   - The Idempotency-Key of the HTTP request belongs to the ledger: one answer
//     per submission. The server composes the ledger's transaction functions
//     with EnqueueTx in one transaction, so that the reservation, the job and
//     the recorded answer exist together or not at all.
//   - Submission.Dedup drops duplicates of work that has not been done yet. The
//     identity is the function with the dedup's key, else with the job's key,
//     else with a digest of the payload. The lock is taken at the submission and
//     freed when the job starts (UntilExecuting) or is terminal (UntilExecuted),
//     or after its TTL if it never gets there. A claim that is undone, and a
//     delivery that does not count, give it back, unless another job has it. A dropped duplicate leaves its
//     database positions with the job that is kept, the latest of each database,
//     so that the job reads a replica that has seen what all of them wrote.
//   - Submission.Key is held by one live job at a time. It is free again when the
//     job is terminal or cancelled; an operator's retry takes it back.
//
// A lock or key whose job is gone or terminal is not honoured.
//
// # Time
//
// All decisions are made by the store's clock. Nothing waits for a timer to be
// right: a claim first does what is due, an expired lock counts for nothing. Run
// does the same in the background so that waiting claims are woken when a job
// falls due, and removes what is over, in bounded transactions.
//
// # Records that cannot be read
//
// A record may be there and be unreadable: a later version of the program wrote it,
// or somebody damaged it. That costs what it stands for and nothing else. Calls that
// name it, or need what it says, return a *store.UnreadableError: those of its job,
// submissions with a key or a lock that such a job may hold, sends of its event.
// Claims, duties and lists go around it, however many there are, tell
// Options.Unreadable, and never write or delete it. A job whose payload is missing
// or not JSON is such a one for all that need the payload; it can be cancelled. A
// lock that cannot be read stays when its job ends. Of a list of paused functions
// the part before the damage holds.
//
// Where a claim gives up behind 2000 of them in a row, the next one goes on there,
// and what is queued among them meanwhile is found 5 seconds later at most.
//
// # Layout
//
// A job is one record of the collection jobs with two index entries. The first
// is in the index of its state, so that the index is in the order in which that
// state is worked off (queued: inverted priority and run_at; scheduled: run_at;
// active: end of the lease; done and dead: time of the end) and its length is a
// gauge. The second is in the index function: function, class of state, then the
// same order, which serves claims and lists of one function. Payloads and results
// over 512 bytes are records of their own, so that claims and heartbeats do not
// write them again. Keys, locks, the set of paused functions, subscriptions and
// keyed sends are single records that transactions Get, so that the store
// serializes the transactions that decide by them; scans only propose candidates.
//
// # Claims under load
//
// All claims of one manager go through one batcher: those that arrive while a
// transaction runs are served by the next one together. Workers of one manager
// never compete; managers of a shared store compete once per batch, and a
// claiming scan (store.Range.Claim) lets the engine keep them apart.
//
// On shared stores, where a transaction is a few round trips however much it
// does, submissions and finishes that arrive at the same time have common
// transactions, too; see group.
//
// A claim that waits is woken when there is work for it, and as many of them as
// there is work, not all; see idleClaims.
//
// # Why so
//
// Why is the payload not hashed with its members sorted? Two programs that write
// members in different orders are rare, and a digest that depends on a JSON
// canonicalization is a compatibility promise forever. A caller that needs an identity
// gives a key.
//
// Why does a cancel free the key of a job whose worker is still at it? Who
// cancels wants to submit a replacement; the cancelled job is never delivered
// again, and its worker learns of it within one heartbeat.
//
// Why is a dead letter the failed job itself, not a copy? A copy would double
// every failure's payload, and the two could disagree. Replaying takes the job
// off the list; the job itself stays for retention.
package jobs
