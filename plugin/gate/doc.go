// Package gate decides what happens to a request. It is the idempotency filter as a
// state machine over a small Host interface. It knows nothing of the Proxy-Wasm ABI
// (plugin/sdk does), so it runs natively in tests.
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
// The request is paused in the phases before forwarded. The route's mode decides whether
// its body has been read by then. In headers mode the host stops everything at the
// headers (PauseAll). In body mode it delivers the body while it holds the headers
// (Pause); no body callback may return Continue before the decision, because that would
// release the headers.
//
// A host holds only what fits into its buffer, and the gate cannot know that size. So the
// gate takes over the bytes that it must see to decide, where it can put them back: see
// holdPiece.
//
// The end of the answer waits for the ledger (commit: before_reply). In body mode the
// headers wait with it. In headers mode they cannot: a Pause there would keep the body
// from the gate. So the headers go out, the host holds the body and the gate copies it
// (held), and no byte of it goes out before the outcome is recorded. An answer that stands
// still is let go, copied on, and its end waits. An answer that is too large to record, or
// of streamed_types, passes as it comes (streamed) and is recorded without its body; only
// its last piece waits. If the VM has no room for the copy, the host collects an answer of
// known length that fits into its buffer (collectBytes), and the gate reads it at its end.
// With commit: async, and where no ledger is called, the answer passes and is copied.
//
// # Requests that the gate carries
//
// A forwarded request is the router's, and ends with its client's stream: the work goes on,
// and its answer is lost. With client_abort: continue the gate keeps the request instead and
// makes the upstream call itself (carrier), from the plugin context like all its calls. The
// result of the call settles the reservation, with or without a client:
//
//	forwarded by the gate: carried --> settling --> replied (upstream's answer, as a local reply)
//	                          |            | the client has left: no reply, the rest is the same
//	                          +------------+-- recorded
//
// The host hands over whole answers only, so they do not stream. The stream's properties do
// not show where such an answer comes from. An inner listener says so in headerAnswer. Without
// one, the router's service time tells upstream's answers from the proxy's, and the proxy's
// texts say whether it had connected (carriedFate).
//
// # One run for each key
//
// The cache entry (plugin/cache) coalesces the duplicates of one proxy: its
// compare-and-set lets one stream create the pending entry, and the others become
// waiters. The ledger decides among proxies: its reserve grants the key to one
// token. Losing the cache, or every race for it, costs calls and never lets a
// request run twice; only with ledger: none is the cache the authority. Before the gate
// asks the ledger, it looks for an outcome that the ledger does not know yet: in the
// cache, where the entry of such an outcome stays, and among this VM's own calls.
//
// While upstream works, the tick renews the reservation at a third of pending_ttl, in the
// ledger and in the cache. So pending_ttl bounds only what follows when a gate dies: the
// outcome then becomes unknown.
//
// The manager never holds the first reserve of a request, so a manager that hangs is
// noticed within manager.timeout_ms. Only if another proxy has the key, the gate makes a
// second reserve, which the manager holds until that proxy is done.
//
// # How a reservation ends
//
//	what happened                             the ledger hears      the next duplicate gets
//	upstream answered: 2xx, 3xx, 5xx          commit                the answer
//	upstream answered: 4xx                    reject                the answer, for a shorter time
//	upstream asks for a retry                 release               a new try
//	it never reached upstream                 release               a new try
//	sent, and no answer                       unknown               409 outcome-unknown, until it is resolved
//	the answer broke off or was too large     commit without body   410
//	the proxy followed a redirect by itself   commit without body   410
//	the proxy began anew, nothing was sent    release               a new try
//	the VM died                               nothing               409, outcome-unknown once the reservation is over
//	the client left before the grant          release               a new try
//	the reserve's answer got lost             release, twice        503, then a new try
//
// The route's outcomes map statuses. The property response.code_details tells upstream's own
// answers from those of the proxy and of other filters. response.flags tells whether a
// request without an answer had been sent; if there may have been a retry, the worst of
// them counts.
//
// # Calls and contexts
//
// A callout that is made while a stream's context is active loses its answer when that
// stream is deleted. So every call is made from the plugin context: the stream's callback
// queues it and sends a message to the VM's own shared queue (kick), and the queue callback
// that follows makes it (pump). A reservation that is granted after the client left is
// therefore noticed and given back, and a commit outlives its stream.
//
// # Which ledger is asked
//
// With manager.shards there are several ledgers. api.Owner computes a key's owner from the
// names and the key alone (ledger.owner). The gate computes it when it asks the ledger, so not
// for keys that the cache answers, and keeps it in attempt.shard: every later call of the
// attempt goes where it was reserved. Each shard has state of its own (shard): whether it is
// down, the calls that are kept for it, the number of calls under way, and what was logged.
//
// While shards are added or removed (manager.previous_shards) the previous owner is asked first:
//
//	the previous owner says          then
//	key-moved                        the new owner is asked
//	anything else about the key      that is the answer
//	nothing                          503: no other ledger knows whether it ran
//
// So the manager says when a key has moved, and only after nothing of the key is left there.
// Gates that do not have the new list yet ask the same previous owner. A manager that is another
// shard (wrong-shard), or a key-moved without another owner to ask, runs nothing with any
// failure_mode; outcomes wait until the mistake is corrected.
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
// counted from the first try. The ledger counts it from the moment it learns of them, so it
// forgets none earlier than it would have. When memory is short the oldest lose everything but
// the status, which is enough to never run the request again. When a manager that was away
// answers, all of them are due immediately, before new reserves, maxRepeating at a time.
//
// An outcome that the manager refuses for good (4xx except 401, 403, 404, 405, 408, 421, 425
// and 429) is sent once more with the status alone, then given up, counted and logged as an
// alarm. The exceptions concern credentials and paths, which may be corrected, so such a call
// is repeated like one that did not arrive. Releases are repeated until the ledger has
// forgotten the reservation.
//
// A manager of the previous release refuses a reserve with unknown_ttl. The gate then sends it
// without, renews nothing, and says so once in the log, until another version answers (peer.go).
//
// # Waiters
//
// The plugin context also answers all other streams, because a local reply stops the stream
// whose callback is running, even if it is meant for another one. So the pump wakes waiting
// duplicates: by messages to the queues of the VMs that the cache entry names. The tick is the
// safety net for VMs that died before they could send them. VMs say in shared data that they
// are alive (cache.Beat). A duplicate does not wait for a dead VM, but asks the ledger.
//
// One callback answers or resumes few streams (maxActs), and the next queue callback goes on.
// The host carries replies out after the callback, each within the one before. In Envoy 1.36
// to 1.40 the 305th overflows the VM's stack, with any number of other filters in the chain,
// and the VM and all its streams are lost.
//
// # Memory
//
// Everything that grows has a bound: waiters (max_waiters), calls to repeat
// (commit_retry.max_queued), upstream calls (max_upstream_calls) and their bodies, messages in
// one callback, and the cache's table. There are limits for the bytes of answers that are
// being copied, and of outcomes that the ledger has not acknowledged; beyond them bodies are
// left out. Beyond the limit for request bodies that the gate takes over, the host holds them.
// Everything that a stream holds ends with it.
package gate
