// Package gate decides what happens to a request. It is the idempotency filter as a state machine over a small Host
// interface. It does not know the Proxy-Wasm ABI (plugin/sdk does), so tests run it natively.
//
// # A request's way
//
//	            OnRequestHeaders
//	                  |  no rule matches, no key
//	 new -------------+-----------------------------------------------> pass
//	                  |  body mode: digest the body first
//	                  v
//	              (decide) <------------------------------+
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
//	                holding | copying | streaming --> recording --> done
//
// The request is paused in the phases before forwarded. In body mode the gate has read the request's body by then, in
// headers mode it has not. In headers mode the host stops everything at the headers of an HTTP/1 request with a small body
// of known length (PauseAll). In all other cases it holds the headers and delivers the body (Pause), if its settings allow
// that. A body callback must not return Continue before the decision, because that would release the headers.
//
// A host holds only as much body as fits into its buffer, and the gate cannot know that size. So the gate takes over the
// bytes that it needs for the decision, where it can put them back later: see holdPiece.
//
// With commit: before_reply the end of the answer waits for the ledger. In body mode the headers wait with it. In headers
// mode they cannot: a Pause there would keep the body from the gate. So the headers go out, the host holds the body, and
// the gate copies it (holding). No byte of that body goes out before the outcome is recorded. Four cases differ:
//
//   - A body that stands still is released, and the gate copies the rest while it passes
//     (copying). Its end still waits.
//   - An answer that is too large to record, or of streamed_types, passes as it comes
//     (streaming). It is recorded without its body, and only its last piece waits.
//   - When the VM has no room for the copy, the host collects the body if its length is known
//     and small enough for the host's buffer (collectBytes). The gate reads it at its end.
//   - With commit: async, and where no ledger is called, the answer passes and is copied.
//
// # Requests that the gate carries
//
// The router carries a forwarded request, and cancels it when the client's stream ends. The work may continue upstream, but
// its answer is lost. With client_abort: continue the gate holds the request and makes the upstream call itself (carrier).
// It does so from the plugin context, like all its calls, and only once the request has ended: the call has no trailers, so
// the router carries requests with trailers. The result of the call settles the reservation, whether the client is still
// there or not:
//
//	forwarded by the gate: carried --> settling --> replied (upstream's answer, as a local reply)
//	                          |            | the client has left: no reply, the rest is the same
//	                          +------------+-- recorded
//
// The host hands over whole answers only, so these answers do not stream, and one of more than maxClientAnswerBytes never
// reaches its client. The router carries requests that would get such an answer (upstream.go): those whose Accept names one
// of streamed_types, those whose JSON body has "stream": true, and those for a path that had such an answer, or one that
// broke off. The gate forgets the path when the router brings an answer that would have suited.
//
// A client that prefers respond-async gets 202 once the call is sent, or later if it names a wait. The call then continues
// as if the client had left, and a look-up has the answer.
//
// No property says where the answer to the gate's call comes from. An inner listener can say so in headerAnswer. Without
// it, the router's service time marks upstream's answers, and the proxy's own texts say whether it had connected
// (carried.fate).
//
// # One run for each key
//
// The cache entry (plugin/cache) coalesces the duplicates of one proxy: its compare-and-set lets one stream create the
// pending entry, and the others become waiters. The ledger decides among proxies: its reserve grants the key to one token.
// A lost cache, or a lost race for an entry, costs calls and never lets a request run twice. Only with ledger: none is the
// cache the authority.
//
// The ledger may not know an outcome yet that this proxy knows. So the gate asks the ledger only after two other sources:
// the cache, where the entry of such an outcome stays, and the calls that this VM has not delivered yet.
//
// While upstream works, the tick renews the reservation in the ledger and in the cache, each time that a third of
// pending_ttl has passed. So pending_ttl bounds only what follows when a gate dies: the outcome then becomes unknown.
//
// The manager never holds the first reserve of a request. So the gate notices a manager that hangs within
// manager.timeout_ms. Only when another proxy has the key does the gate make a second reserve, which the manager holds
// until that proxy is done.
//
// # How a reservation ends
//
//	what happened                             the ledger hears      the next duplicate gets
//	upstream answered: 2xx, 3xx, 5xx          commit                the answer
//	upstream answered: 4xx                    reject                the answer, for a shorter time
//	upstream asks for a retry                 release               a new try
//	it never reached upstream                 release               a new try
//	sent, and no answer                       unknown               409 outcome-unknown, until it is resolved
//	the same, and the route is resumable      release               a new try
//	the client left within its upload         unknown, or release   409, or a new try where the route says so
//	the answer broke off or was too large     commit without body   410
//	the proxy followed a redirect by itself   commit without body   410
//	the proxy began again, nothing was sent   release               a new try
//	the VM died                               nothing               409, outcome-unknown once the reservation is over
//	the client left before the grant          release               a new try
//	the reserve may have been made            release, twice        503, then a new try
//
// The route's outcomes map statuses. The property response.code_details distinguishes upstream's own answers from those of
// the proxy and of other filters. When there was no answer, response.flags reports whether the request had been sent. They
// describe the last try only, so after a retry the outcome counts as unknown.
//
// # Calls and contexts
//
// A VM has connections to each shard's manager (conn.go): gRPC streams, each of which carries any number of calls. They
// belong to the plugin context, so a call and its reply do not depend on the stream that asked. A stream's callback sends
// its call immediately where the connection is open. Otherwise it queues the call and sends a message to the VM's own
// shared queue (requestCallback); the queue callback that follows opens the connection (connect). A commit can therefore
// outlive its stream, and the gate can give back a reservation that was granted after the client left.
//
// Calls about one key keep their order on a connection. Large messages have a connection of their own, and so has a call
// whose answer is large: the manager then says so (large-answer), and the gate repeats the call there.
//
// A connection that ends takes its calls with it. They may have been carried out or not. The gate opens another one, first
// immediately and then with backoff, and sends each of them again with its token until manager.timeout_ms has passed since
// it was first sent. Meanwhile new reserves and look-ups wait, too. Once a manager has been away for longer than that, each
// waits for one more try only, and for none where the request may be forwarded without protection. A manager that stands
// still does not end its connections: calls find that by their time-out, and the connection by a ping that is not answered.
//
// # Which ledger is asked
//
// With manager.shards there are several ledgers. api.Owner computes a key's owner from the names and the key alone
// (ledger.owner). The gate computes it only when it asks the ledger, not for keys that the cache answers. It stores the
// result in attempt.shard, so every later call of the attempt goes to the ledger that reserved the key. Each shard has its
// own state (shard): whether it is down, the calls that are stored for it, the number of calls under way, and what was
// logged.
//
// While shards are added or removed (manager.previous_shards) the previous owner is asked first:
//
//	the previous owner says          then
//	key-moved                        the new owner is asked
//	anything else about the key      that is the answer
//	nothing                          503: no other ledger knows whether it ran
//
// A manager says key-moved only after it keeps nothing about the key any more. Gates that do not have the new list yet ask
// the same previous owner. Two answers show that gates and managers disagree about the shards: wrong-shard (the manager is
// another shard), and key-moved where no other owner is left to ask. The gate then runs nothing, whatever failure_mode
// says, and stores outcomes until the mistake is corrected.
//
// # Calls that do not arrive
//
// The gate repeats commits, rejects and reports of unknown outcomes until their own TTL is over, counted from the first
// try. The ledger counts the TTL from the moment it learns of the outcome, so it never forgets one too early. When memory
// is short, the oldest outcomes lose everything but the status, which is enough to never run the request again. When a
// manager that was away answers, all these retries are due immediately; releases stay due at their times. Repetitions go
// before new reserves, at most maxRetriesUnderWay at a time.
//
// The manager may refuse an outcome for good (4xx except 401, 403, 404, 405, 408, 421, 425 and 429). The gate sends it once
// more with the status alone, then gives it up, counts it and logs an alarm. The excepted statuses are about credentials,
// paths, shards or load, which can change, so such a call is repeated like one that did not arrive. So is one whose 400 has
// lost its code. Releases are repeated until the ledger has forgotten the reservation.
//
// # Waiters
//
// The plugin context also answers all other streams, because a local reply stops the stream whose callback is running, even
// if the reply is for another one. So runPending wakes waiting duplicates. Messages go to the queues of the VMs that the
// cache entry names. A VM may die before it sends them, so the tick looks as well. Each VM says in shared data that it is
// alive (cache.Beat). A duplicate does not wait for a dead VM, but asks the ledger.
//
// A look-up with wait_ms waits in the same list. The manager does not hold look-ups, so it is asked again each
// recheckPeriod while another gate has the key.
//
// One callback answers or resumes few streams (maxHandled), and the next queue callback continues. The host carries replies
// out after the callback, each within the one before. Too many of them overflow the VM's stack, and the VM and all its
// streams are lost.
//
// # Files in reading order
//
// A new key passes these:
//
//	stream.go          a request's life: the phases, and the host's callbacks in their order
//	request.go         headers of requests: the key, the scope, what upstream gets to know
//	decide.go          the decision about a request: by the cache, then by the ledger's reply to its reserve
//	call.go            a call to the ledger, the replies to it, and the table of what they cause
//	conn.go            how calls and replies travel: connections
//	response.go        upstream's answer
//	record.go          attempts and reservations, and how an answer is recorded in the ledger and in the cache
//	plugin.go          a VM: its start, its callbacks, its work outside of streams, its end
//
// The others have what happens beside it:
//
//	host.go            what the gate needs of the proxy; names of headers and properties; metrics
//	requestbody.go     bodies of requests, and bodies that stand still
//	answer.go          the gate's own replies: replays, and replies that wait for the ends of their requests
//	problems.go        refusals
//	waiting.go         duplicates that wait
//	lookup.go          clients that ask what became of a request, or prefer 202 to a long wait
//	reservation.go     renewals; reservations that end without an answer to record
//	failure.go         connections that end, and calls that fail
//	shard.go           what the gate knows of each manager, and the calls that it stores for it
//	protocol.go        unary gRPC calls, JSON-RPC, and Iceberg catalogs
//	upstream.go        the gate's own upstream calls
//	direct.go          upstream calls that pass no inner listener
//	upstreamanswer.go  the answers to them
//
// # Memory
//
// Everything that grows has a bound: waiters (max_waiters), calls to repeat (commit_retry.max_queued), upstream calls
// (max_upstream_calls) and their bodies, paths that the router carries (maxUnsuited), calls on a connection and their
// bytes, messages in one callback, and the cache's table. The bytes of answers that are being copied, and of outcomes that
// the ledger has not acknowledged, have a limit; beyond it the gate leaves bodies out. The request bodies that the gate
// takes over have a limit; beyond it the host holds them. Everything that a stream holds ends with it.
package gate
