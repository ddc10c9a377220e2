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
//	                              │   finish failed; lease of the last attempt lost
//	                              ▼
//	                           replayed (operator; a copy with another id is queued)
//
//	scheduled, queued ── expires_at reached ──▶ expired, or failed
//
// complete, failed, cancelled, replayed and expired are terminal: a worker's call never changes them. An operator's retry
// brings back a failed, cancelled or expired job. An operator's replay runs a copy of a failed job, and from then on the job itself
// cannot run again. A job that no worker has can be deleted. Terminal jobs stay readable until retention removes them,
// by age and by count.
//
// # Delivery
//
// A claim leases queued jobs to a worker: the highest priority first. Within a priority the functions that it names take
// turns, and within a function the earliest run_at is first (for a job submitted without delay, the time of its
// submission). So a long queue of one function delays no other function of its priority. A claim that names no functions
// gets the earliest run_at of all. Each delivery has a random token and counts as an
// attempt. While the lease lasts, no other worker gets the job, and calls with another token are fenced. When a lease
// runs out the job is queued again at its old place or, after its last attempt, failed. So a worker that crashes loses
// nothing, and a job that crashes its workers ends in the dead letters. A lease that ran out is its worker's until it
// is revoked, so a late finish reports what really happened. Time in which no manager served does not count (see
// package downtime).
//
// No attempt begins once a job's ExpiresAt is reached. The job ends as expired, or failed if it is to be a dead letter, when
// it waits at that time or as soon as it would wait again. From then on it holds neither key nor lock, even before it
// is ended. With a Timeout no heartbeat extends the lease beyond it, and an attempt that reaches it has failed: the job is
// queued again with backoff.
//
// Execution is therefore at least once. A caller that needs exactly one effect makes its handler idempotent, with the
// job's id as the key.
//
// # Three kinds of deduplication
//
// They are independent of each other. In the order in which a submission meets them:
//
//   - The Idempotency-Key of the HTTP request belongs to the ledger: one answer
//     per submission. The server combines the ledger's calls and EnqueueTx in one
//     transaction, so the reservation, the job and the recorded answer exist
//     together or not at all.
//   - Submission.Dedup drops duplicates of work that is not done yet. The
//     identity is the owner and the function with the dedup's key, else with the job's key,
//     else with a digest of the payload. The submission acquires a lock on it. The
//     lock is released when the job starts (UntilExecuting) or is terminal
//     (UntilExecuted), or after its TTL if the job never gets there. The TTL counts
//     from run_at, so it moves with a retry. A claim that
//     is undone, and a delivery that does not count, acquire it again, unless
//     another job holds it. An operator's retry acquires it again as well, and is
//     refused if another job holds it. A dropped duplicate adds its database positions to
//     the job that is kept, the latest of each database, so that the job reads a
//     replica that has seen the writes of all of them.
//   - Submission.Key is held by one live job at a time. It is released when the
//     job is terminal; an operator's retry acquires it again.
//
// A running job whose cancel was requested is not terminal until its worker lets go of it.
//
// A lock or key whose job is removed or terminal is void.
//
// # Events and batches
//
// An event becomes a job for each function that subscribes to its name, in one transaction (SendTx). A batch is jobs that
// are enqueued together, and a callback that runs when the last of them has ended (EnqueueBatchTx). The callback's job is
// scheduled for a time that never comes; the transaction in which the last job ends queues it.
//
// # Limits and turns
//
// Limits hold for all managers of a store. A record of the function counts the running jobs and has the token bucket of its
// rate, and a record for each concurrency key counts the jobs that wait and run with it. The transactions that change a
// job's state change them, so claims that compete for the last place conflict. A job counts for what the limits were when
// it was delivered, until that delivery ends.
//
// Queued jobs with a concurrency key are in an index of their own, by key. A claim takes keys from an index of those that
// have work and a free place, the one that was served longest ago first, and then jobs of these keys. So it never reads
// the backlog of a key that it does not serve.
// Only functions whose setting says so are searched for such jobs. The transaction in which a job begins to wait makes the
// setting, and retireKeyed removes it when there are no such jobs any more.
//
// # Time
//
// All decisions use the store's clocks, and none depends on a timer. Leases and attempts end by store.Tx.Now, everything
// else goes by store.Tx.Wall: run_at, delays, expiry, locks and retention. A claim first does what is due, and an expired lock is void. Run
// does the same in the background, in bounded transactions: it wakes waiting claims when a job is due, and removes what
// has expired.
//
// # Records that cannot be read
//
// A record may be unreadable: it has another version, or it was damaged. That affects only what the
// record stands for. Calls that name it, or that need its content, return a *store.UnreadableError: those of its job,
// and submissions with a key or a lock that such a job may hold. Claims, duties and lists skip it, however many such
// records there are. They report it to Options.Unreadable, and never write or delete it. A job whose payload is missing
// or is not JSON is unreadable for every call that needs the payload, but it can be cancelled. A lock that cannot be
// read stays when its job ends. Of a damaged list of paused functions, the part before the damage is in force.
//
// A claim gives up after 2000 jobs in a row that cannot be read or have expired, and the next one continues there. Jobs queued among them
// meanwhile are found at most 5 seconds later.
//
// # Room
//
// Options.MaxBytes bounds the bytes of all jobs. Only submissions are refused when there is no room. Terminal jobs have a
// part of it, and retention keeps them within it. Where one process uses the store, the store says how many bytes there
// are, and the bytes of terminal jobs and of owners are stored in the transactions that change them. On shared stores all of
// that is a count of all jobs, repeated from time to time, and what this queue's own calls changed since (see CountBytes).
//
// # Layout
//
// A job is one record of the collection jobs. Its first index entry is in the index of its state. That index
// has the order in which jobs of the state are processed (queued: inverted priority and run_at; scheduled: run_at;
// active: end of the lease; done and dead: time of the end), and its length is a gauge. The second is in the index
// function: function, class of state, then the same order. It serves claims and lists of one function. Active jobs have
// none, so that a claim, a heartbeat and a finish change fewer entries; their first entry ends with the function. Payloads
// and results over 512 bytes are records of their own, so that claims and heartbeats do not rewrite them. Keys, locks and
// the set of paused functions are single records that transactions Get, so the store serializes the transactions that
// depend on them; scans only propose candidates.
//
// # Claims under load
//
// All claims of one manager go through one batcher: those that arrive while a transaction runs are served together by
// the next one. Workers of one manager never compete. Managers of a shared store compete once per batch, and with a
// claiming scan (store.Range.Claim) the engine keeps them apart.
//
// On shared stores a transaction is a few round trips however much it does. There, submissions and finishes that arrive
// at the same time share transactions, too (see newGroup).
//
// A waiting claim is woken when there is work for it. Only as many claims are woken as there is work for, not all (see
// idleClaims).
package jobs
