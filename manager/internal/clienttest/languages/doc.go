// Package languages runs the clients of all languages through the same cases: one table of calls, one table of handlers, and the
// same ends of workers. A case runs a real manager, and a wire before it that cuts, answers, holds and redirects as
// the case says. The client is in a program of its own, the language's driver.
//
// # Drivers
//
// A driver reads a command from each line of its standard input and writes its answer as one line to standard output,
// before it reads the next. Its own errors go to standard error. It ends when its input does, after its worker was stopped.
// SIGTERM stops its worker too, and then the driver ends with status 0, or 1 if handlers did not return.
//
//	{"op": "submit", "args": {"function": "f", "payload": 1}, "within_ms": 500}
//	{"ok": {"id": "...", "state": "queued", ...}}
//	{"error": {"status": 409, "code": "outcome-unknown", "detail": "...", "temporary": false, "retry_after_ms": 0, "replayed": false}}
//
// An error without an answer of the manager has status 0 and code "". An error with temporary true is one after which the same
// call may succeed. With within_ms, a call ends after this time at the latest; the error is then that of the last attempt, if
// there was one, and temporary. A member that a client does not know is null or missing. A command that a client does not offer
// is answered {"unsupported": true}.
//
// Durations are milliseconds, and jobs have the members of the API's JSON, and "replayed": true if the answer was a recorded
// one.
//
//	open           {url, failover?: [url], token?, client_id?, timeout_ms?, backoff_base_ms?, backoff_max_ms?, max_retry_after_ms?,
//	               max_attempts?}: makes the client of all later commands; null
//	submit         a submission as in the API, and idempotency_key?, traceparent?; the job
//	submit_batch   {items: [submission]}: [{"job": job, "idempotency_key": key} or {"error": error, "idempotency_key": key}]
//	submit_wait    a submission: submits, and waits for the job's end; the job
//	send           {name, payload?, idempotency_key?}: an event; {"event", "jobs": [{"id", "function"}], "replayed"}
//	start_batch    {jobs: [submission], callback?: submission, idempotency_key?}: the batch, and "replayed"
//	wait_batch     {id}: the batch once all of its jobs have ended
//	subscribe, unsubscribe  {name, function}: null
//	wait, get      {id}: the job
//	cancel         {id}: the job
//	list           {function?, state?, submitter?, key?, concurrency_key?, older_than_ms?, newer_than_ms?, error?, error_text?,
//	               limit?, cursor?}: {"jobs": [job], "cursor": text}
//	claim          {worker, functions?, limit?, lease_ms?, wait_ms?}: [job]
//	heartbeat      {id, lease_token, lease_ms?}: {"cancelled": bool, "expires_in_ms": number}
//	finish         {id, lease_token, status, result?, error?}: the job
//	retry          {id, lease_token, delay_ms?, error?, uncounted?}: the job
//	put_schedule   {name, and a schedule as in the API}: the schedule
//	get_schedule, pause_schedule, resume_schedule  {name}: the schedule
//	delete_schedule  {name}: null
//	list_schedules {limit?, cursor?}: {"schedules": [schedule], "cursor": text}
//	run_schedule   {name, idempotency_key?}: the job
//	functions      {limit?, cursor?}: {"functions": [function], "cursor": text}
//	set_limits     {function, max_running?, max_running_per_key?, rate?}: null
//	keys           {client_id, n}: n new keys
//	open_keys      {file, n}: n new keys whose client id is kept in the file
//	reserve        {key, scope?, fingerprint?, token?, pending_ttl_ms?, wait_ms?, durability?}: {"state", "token", "expires_in_ms",
//	               "result"?}
//	commit, reject {key, scope?, token, fingerprint?, durability?, ttl_ms?, result: {status, headers: [[name, value]], body: text,
//	               body_omitted?}}: {"state"}
//	renew          {key, scope?, token, pending_ttl_ms?, durability?}: {"state", "expires_in_ms"}
//	release        {key, scope?, token, durability?}: {"state"}
//	entry          {key, scope?}: the ledger's entry
//	check          {handler, payload}: the test of a handler that is to be idempotent; null, or an error whose detail says
//	               what is wrong
//	work           {handlers: {function: handler}, log, name?, concurrency?, lease_ms?, wait_ms?, stop_timeout_ms?, stop_grace_ms?}:
//	               starts a worker; null
//	go_on          {}: lets handlers that wait for it continue; null
//	stop           {}: stops the worker and waits for its end; null, or an error that says how many handlers did not return
//
// # Handlers
//
// Handlers append lines to the file log, each with one write call: {"event": "begin", "job": id, "attempt": number} when they
// begin, and {"event": "end", "job": id, "attempt": number, "cause": text} when they return or give up. The cause is why the
// worker asked the handler to end: "cancelled", "timeout", "lease-lost", "stopping", or "" if it did not.
//
//	echo           returns the payload
//	nothing        returns nothing
//	large          returns a text of as many x as the payload says
//	umlauts        returns a text of as many "ü" as the payload says
//	no_json        returns a value that the language cannot encode as JSON
//	deep           returns arrays that are nested 99 deep
//	fail           fails with "no 1", "no 2" and so on, by the attempt
//	fail_once      fails in the first attempt and returns "now" later
//	permanent      fails finally, with "never"
//	retry_after    fails in the first attempt with "soon", to be retried after as many milliseconds as the payload says, and returns
//	               "later" afterwards
//	crash          fails as a bug does, with "oh no": a panic, an exception of the runtime, what the language has
//	no_text        fails with an error without a text
//	endless        fails finally with a text of 100,000 "ü"
//	wait           waits for go_on and returns "done", or for its own end, and fails with the cause
//	stubborn       waits for go_on, whatever else happens, and returns "done"
//	finish_anyway  waits for its own end and returns the cause
//	sleep          waits for as many milliseconds as the payload says, or for its own end, in which case it fails; returns "done"
//	twice          (check) does its work again in each delivery: not idempotent
//	once           (check) remembers the job's id, and does its work once
package languages
