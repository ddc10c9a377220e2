// Package gate decides what happens to a request: the idempotency filter as a
// state machine over a small Host interface. It knows nothing of the Proxy-Wasm
// ABI (plugin/sdk does) and runs natively in tests.
//
// # A request's way
//
//	            OnRequestHeaders
//	                  |  no rule matches, no key
//	 new -------------+-----------------------------------------------> pass
//	                  |  body mode: digest the body first
//	                  v
//	               (look) <-------------------------------+
//	   another's      |  entry     |  entry               | woken: the other
//	   pending entry  |  is final  |  is new              | attempt ended
//	   +--------------+            +---------+            |
//	   v                           |         v            |
//	waiting -----------------------|---- reserving -------+
//	   | too long                  |         | the ledger grants the key
//	   v                           v         v
//	replied (409)     replied (replay)    forwarded
//	                                         | upstream answers
//	                                         v
//	                        held | copied | streamed --> recording --> done
//
// The request is paused in the phases before forwarded. Whether its body has
// been read by then is the route's mode: in headers mode the host stops everything
// at the headers (PauseAll), in body mode it delivers the body while it holds the
// headers (Pause), and no body callback may return Continue before the decision,
// because that would release the headers.
//
// A host holds no more than its buffer takes, which the gate cannot know. What a gate must
// see to decide, it therefore takes over, where it can put it back: see holdPiece.
//
// The answer's end is what waits for the ledger (commit: before_reply). In body
// mode the headers wait with it. In headers mode they cannot: a Pause there
// would keep the body from the gate. So the headers go out, the host holds the body
// and the gate copies it (held), and nothing of it goes out before the outcome is
// recorded. An answer that stands still is let go, copied on, and its end waits.
// An answer that is too large to record, or of streamed_types, passes as it comes
// (streamed) and is recorded without its body; only its last piece waits.
// Where the VM has no room for the copy, the host collects an answer of known length that
// fits into its buffer (collectBytes), and the gate reads it at its end.
// With commit: async, and where no ledger is called, the answer passes and is copied.
//
// # Who carries a request
//
// A forwarded request is the router's, and ends with its client's stream: the work goes on, and its
// answer is lost. With client_abort: continue the gate keeps the request instead and makes the
// upstream call itself (carrier), from the plugin context as all its calls. What the call ends with
// settles the reservation, client or not:
//
//	forwarded by the gate: carried --> settling --> replied (upstream's answer, as a local reply)
//	                          |            | the client has left: no reply, the rest is the same
//	                          +------------+-- recorded
//
// The host hands over whole answers only, so nothing of them streams, and who made an answer is not to
// be seen in the stream's properties. An inner listener says so in headerAnswer; without one, the
// router's service time tells upstream's answers from the proxy's, and the proxy's texts whether it had
// connected (carriedFate).
//
// # Who may run a request
//
// The cache entry (plugin/cache) coalesces the duplicates of one proxy: its
// compare-and-set lets one stream create the pending entry, the others become
// waiters. The ledger decides among proxies: its reserve grants the key to one
// token. Losing the cache, or every race for it, costs calls and never lets a
// request run twice; only with ledger: none is the cache the authority. An outcome that
// the ledger does not know yet is looked for before it is asked: in the cache, where its
// entry stays until then, and among this VM's own calls.
//
// While upstream works, the tick renews the reservation at a third of pending_ttl, in the
// ledger and in the cache. So pending_ttl bounds only what follows when a gate dies: the
// ledger then takes the outcome for unknown.
//
// The first reserve of a request is never held by the manager, so that one that
// hangs is noticed within manager.timeout_ms. Only when the key turns out to be
// another proxy's, a second one is, until that proxy is done.
//
// # How a reservation ends
//
//	what happened                             the ledger hears      the next duplicate gets
//	upstream answered: 2xx, 3xx, 5xx          commit                the answer
//	upstream answered: 4xx                    reject                the answer, for a shorter time
//	upstream asks to be asked again           release               a new try
//	it never reached upstream                 release               a new try
//	sent, and no answer                       unknown               409 outcome-unknown, until it is resolved
//	the answer broke off or was too large     commit without body   410
//	the proxy followed a redirect by itself   commit without body   410
//	the proxy began anew, nothing was sent    release               a new try
//	the VM died                               nothing               409, outcome-unknown once the reservation is over
//	nobody was there when the key was granted release               a new try
//	the reserve's answer got lost             release, twice        503, then a new try
//
// Statuses are mapped by the route's outcomes. Upstream's own answers are told from
// the proxy's and other filters' by the property response.code_details; whether a
// request that got no answer had been sent is told by response.flags, and where a
// retry may have been in between, by the worst of them.
//
// # Calls and contexts
//
// A callout that is made while a stream's context is active loses its answer when
// that stream is deleted. Every call is therefore made from the plugin context: the
// stream's callback queues it and sends a message to the VM's own shared queue
// (kick); the queue callback that follows makes it (pump). So a reservation that is
// granted after the client left is heard of, and given back; a commit outlives
// the stream that it is for.
//
// # Which ledger is asked
//
// With manager.shards there are several, and api.Owner computes a key's owner from the names and the key
// alone (ledger.owner). It is computed when the ledger is asked, so not for what the cache answers, and is kept in
// attempt.shard: all that follows about the attempt goes where it was reserved. Whether a shard is down, which
// calls are kept for it, how many are under way and what the log has said is kept for each by itself (shard).
//
// While shards are added or removed (manager.previous_shards) the previous owner is asked first:
//
//	the previous owner says          then
//	key-moved                        the new owner is asked
//	anything else about the key      that is the answer
//	nothing                          503: nobody else knows whether it ran
//
// So it is the manager that says when a key has moved, and that only once nothing of it is left there. Gates that have
// not got the new list yet ask the same previous owner. A manager that is not the one that is meant
// (wrong-shard), or a key-moved with no other owner to ask, runs nothing, whatever failure_mode says; outcomes
// wait until that is put right.
//
// # Calls that go together
//
// The calls that are ready in one callback go to their shard as one callout (batch.go), whatever they are:
// reserves, outcomes, releases, renewals, repetitions. A lone call goes by itself. While a callout is under way, new calls
// wait for its answer, then go together: for a few callbacks at most (maxPatience), and for none that hangs.
// Each call of a batch is answered by itself, and what holds for a call holds for each. By themselves go a reserve
// that may wait, a large answer, and a call whose batch failed as a whole, or of whose answer there was no room
// (ask-alone): the ledger knows its token, so that it may be made twice. Repetitions take no new calls along, so
// that a call that fails each time fails nobody else. Where a manager, or something on the way, knows no batches,
// all calls go by themselves for a while (peer.go). The answers of a batch are settled few at a time (maxActs).
//
// # Calls that do not arrive
//
// Commits, rejects and reports of unknown outcomes are repeated until their own TTL is over,
// counted from the first try; the ledger counts it from when it hears of them, so it forgets
// none earlier than it would have. Under memory pressure the oldest lose all but the status,
// which is enough to never run the request again. When a manager that was away answers, all
// are due at once, in front of new reserves, maxRepeating at a time. What the manager refuses
// for good (4xx but 401, 403, 404, 405, 408, 425, 429) is sent once more with the status
// alone, then given up, counted and logged as an alarm; what has to do with credentials and
// paths may be put right, and is repeated like a call that did not arrive. Releases are
// repeated until the ledger has forgotten the reservation.
//
// A manager of the release before refuses a reserve that names unknown_ttl. It is then sent
// without, nothing is renewed, and the log says so once, until another version answers (peer.go).
//
// Answering other streams is left to the plugin context for another reason: a local
// reply stops the stream whose callback is running, even if it is for another.
// Waiting duplicates are therefore woken by the pump as well: by messages to the queues
// of the VMs that the cache entry names, with the tick as safety net for VMs
// that died before they could send them. VMs say in shared data that they are alive
// (cache.Beat). A duplicate does not wait for one that is not, but asks the ledger.
//
// One callback answers or resumes few streams (maxActs), and the next queue callback goes on.
// The host carries replies out after the callback, each within the one before: in Envoy
// 1.36 to 1.40 the 305th overflows the VM's stack, with 1 as with 40 other filters in the
// chain, or 5 Wasm filters among them. The VM and all its streams are lost then.
//
// # Memory
//
// Everything that grows has a bound: waiters (max_waiters), calls to repeat
// (commit_retry.max_queued), upstream calls (max_upstream_calls) and their bodies, messages per callback, the cache's table. The bytes of
// answers that are being copied, and of outcomes that the ledger has not acknowledged,
// have limits beyond which bodies are left out; those of request bodies that are taken over
// have one beyond which the host holds them. What a stream holds ends with it.
package gate
