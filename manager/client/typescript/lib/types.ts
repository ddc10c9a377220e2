// What the calls send and get, with the names of the manager's API. Durations are milliseconds, times are RFC 3339.

/** States of a job. The last five are final, but an operator may retry or replay a job. */
export type JobState = "scheduled" | "queued" | "active" | "complete" | "failed" | "cancelled" | "replayed" | "expired";

/** A job as the manager returns it. Members that do not apply are absent. */
export interface Job<Payload = unknown, Result = unknown> {
	id: string;
	function: string;
	/** Numbers beyond 2^53 lose digits in JavaScript: send such numbers as text. */
	payload?: Payload;
	/** Stands for the payload in the answer to a submission. */
	payload_bytes?: number;
	key?: string;
	concurrency_key?: string;
	/** The id of the batch that the job belongs to. */
	batch?: string;
	/** The id of the batch whose callback the job is. */
	after?: string;
	state: JobState;
	priority: number;
	attempt: number;
	max_attempts: number;
	run_at?: string;
	/** From when on no attempt begins. */
	expires_at?: string;
	on_expiry?: "dead_letter";
	/** Bounds each attempt. */
	timeout_ms?: number;
	created_at: string;
	started_at?: string;
	finished_at?: string;
	/** A digest that identifies the submitter. Answers to operators have it, and what `get` answers to the submitter. */
	submitter?: string;
	result?: Result;
	error?: string;
	/** The errors of the last five attempts that failed, the oldest first. `get` returns them. */
	errors?: AttemptError[];
	/** W3C trace context of the span that submitted the job. A handler continues the trace with it, or links to it. */
	traceparent?: string;
	/** Name of the event that made the job. */
	event?: string;
	/** The job was cancelled while a worker holds it. */
	cancel_requested?: boolean;
	/** Id of the copy that an operator enqueued of a replayed job. */
	replayed_as?: string;
	dedup?: Dedup;
	lease?: Lease;
	/** By database, the Postgres LSN that a replica must have reached before the job may read from it. */
	wal_locations?: Record<string, string>;
	/** The submission was dropped as a duplicate of this job. */
	deduplicated?: boolean;
	/** The job held the submission's key already. */
	existing?: boolean;
}

/** How an attempt ended that did not do the work. */
export interface AttemptError {
	attempt: number;
	at: string;
	worker: string;
	/** At most 512 bytes. */
	error: string;
}

/** A worker's lease of a job. */
export interface Lease {
	worker: string;
	/** For the worker only. */
	token?: string;
	/** How long the lease lasts from the answer on. */
	expires_in_ms: number;
}

/** Asks the manager to drop duplicates of a job. */
export interface Dedup {
	/** Default: `until_executing`. */
	strategy?: "until_executing" | "until_executed";
	/** Identifies duplicates instead of the job's key or payload. */
	key?: string;
	/** Releases a lock that was not released otherwise; default 6 h. */
	ttl_ms?: number;
	/** Runs the job once more if duplicates were dropped; only with `until_executed`. */
	if_deduplicated?: "reschedule_once";
}

/** A job to enqueue. */
export interface Submission {
	/** 1 to 128 letters, digits and `_ . : - ~`. */
	function: string;
	/** Encoded as JSON of at most 1 MiB; default `null`. */
	payload?: unknown;
	id?: string;
	/** Held by one live job at a time. */
	key?: string;
	/** Groups jobs of a function, such as those of a tenant. Keys take turns, and a limit may bound the running jobs of each. */
	concurrency_key?: string;
	/** -32768 to 32767, higher runs first; default 0. */
	priority?: number;
	/** When the job may run, or `delay_ms`: at most 366 days ahead. */
	run_at?: string | Date;
	delay_ms?: number;
	/** 1 to 1000; default 25. */
	max_attempts?: number;
	/** From when on no attempt begins, or `expires_in_ms` from the submission on. */
	expires_at?: string | Date;
	expires_in_ms?: number;
	/** How a job ends that expires: `drop`, the default, as `expired`; `dead_letter` as `failed`. */
	on_expiry?: "drop" | "dead_letter";
	/** Bounds each attempt: 100 ms to 24 h; default: only the lease does. An attempt that reaches it has failed. */
	timeout_ms?: number;
	dedup?: Dedup;
	/** Default: `reject`. */
	on_duplicate?: "reject" | "return_existing";
	wal_locations?: Record<string, string>;
	/** Idempotency key of the call; drawn from the client's keys when absent. */
	idempotency_key?: string;
	/** W3C trace context of the span that submits. A batch does not take it. */
	traceparent?: string;
}

/** The job that a submission made, or that stands for it. A job of another submitter shows only its id, function and state. */
export interface Submitted extends Partial<Omit<Job, "id" | "function" | "state">> {
	id: string;
	function: string;
	state: JobState;
	/** The answer was recorded for an earlier attempt. */
	replayed: boolean;
}

/** Is sent to the functions that subscribe to its name. */
export interface Event {
	/** 1 to 128 letters, digits and `_ . : - ~`. */
	name: string;
	/** That of the event's jobs, encoded as JSON of at most 1 MiB; default `null`. */
	payload?: unknown;
	/** Idempotency key of the call; drawn from the client's keys when absent. */
	idempotency_key?: string;
	/** As in Submission. */
	traceparent?: string;
}

/** The answer to an event. */
export interface Sent {
	event: string;
	/** The jobs that it made, in the order of their functions; none if no function subscribes to it. */
	jobs: { id: string; function: string }[];
	/** The answer was recorded for an earlier attempt. */
	replayed: boolean;
}

/** Jobs that are submitted together, all of them or none. */
export interface Batch {
	/** 1 to 1000. Their `idempotency_key` counts for nothing. */
	jobs: Submission[];
	/** Runs once when the last of them has ended. The `after` of its job is the batch's id. It has neither `run_at` nor `delay_ms`. */
	callback?: Submission;
	/** Idempotency key of the call; drawn from the client's keys when absent. */
	idempotency_key?: string;
	/** As in Submission. */
	traceparent?: string;
}

/** What became of the jobs of a batch. */
export interface BatchInfo {
	id: string;
	/** Ids in the order of the request; only in the answer to `startBatch`. */
	jobs?: string[];
	/** Jobs of the batch. One that another job stands for does not count. */
	total: number;
	/** Jobs that have not ended. The others did as the counts say. */
	pending: number;
	complete: number;
	failed: number;
	cancelled: number;
	expired: number;
	created_at?: string;
	finished_at?: string;
	/** The id of the callback's job. */
	callback?: string;
	/** The answer was recorded for an earlier attempt. */
	replayed: boolean;
}

/** Selects jobs. Members that are absent do not restrict it. */
export interface ListQuery {
	function?: string;
	state?: JobState;
	submitter?: string;
	key?: string;
	concurrency_key?: string;
	/** Jobs that ended, or that have not ended and were submitted, at least this long ago. */
	older_than_ms?: number;
	/** Jobs for which that is less long ago: more than `older_than_ms`. */
	newer_than_ms?: number;
	/** Jobs whose last error is of the same kind. */
	error?: string;
	/** Jobs whose last error contains this text, in upper or lower case. */
	error_text?: string;
	/** 1 to 1000; default 100. */
	limit?: number;
	/** That of the page before; default: the first page. */
	cursor?: string;
	/** Show payloads and results as well. */
	payloads?: boolean;
}

/** One page of jobs. The cursor is empty on the last one. */
export interface JobPage {
	jobs: Job[];
	cursor: string;
}

/** Asks for a page of a list. */
export interface PageQuery {
	/** 1 to 1000; default 100. */
	limit?: number;
	/** That of the page before; default: the first page. */
	cursor?: string;
}

/** What a schedule enqueues, and when. From `function` to `timeout_ms` the members are those of Submission. */
export interface ScheduleSpec {
	/** Minute, hour, day of month, month and day of week; or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. */
	cron: string;
	/** A name of the time zone database, such as `Europe/Vienna`; default UTC. */
	time_zone?: string;
	function: string;
	payload?: unknown;
	priority?: number;
	max_attempts?: number;
	expires_in_ms?: number;
	on_expiry?: "drop" | "dead_letter";
	timeout_ms?: number;
	/** Which missed instants get a job: `one`, the default, is the latest; `skip` is none, `all` the latest 1000. */
	missed?: "one" | "skip" | "all";
	/** `skip`: no job while the last one is not over. Default: `allow`. */
	overlap?: "allow" | "skip";
	/** `home`: of the data centres with this schedule, only the home of its name enqueues jobs. Default: `each`. */
	data_centers?: "each" | "home";
}

/** A schedule as the manager returns it. Members that do not apply are absent. */
export interface Schedule {
	name: string;
	cron: string;
	time_zone: string;
	function: string;
	/** Not in a page. */
	payload?: unknown;
	priority: number;
	max_attempts?: number;
	expires_in_ms?: number;
	on_expiry?: "dead_letter";
	timeout_ms?: number;
	missed: "one" | "skip" | "all";
	overlap: "allow" | "skip";
	data_centers: "each" | "home";
	/** The data centre that enqueues the jobs of `home`, where there are several. */
	home?: string;
	paused: boolean;
	paused_at?: string;
	created_at: string;
	/** When a call last changed what it enqueues, or when. */
	changed_at: string;
	/** The next instant; a paused schedule has none. */
	next_at?: string;
	/** The latest instant that had a job. */
	last_at?: string;
	/** The id of that job. */
	last_job?: string;
	missed_instants: number;
	overlapped_instants: number;
}

/** One page of schedules. The cursor is empty on the last one. */
export interface SchedulePage {
	schedules: Schedule[];
	cursor: string;
}

/** Bounds the delivery of a function's jobs, by all managers of a store together. An absent member does not. Numbers are 1 to 1,000,000. */
export interface Limits {
	/** Jobs that workers have at the same time. */
	max_running?: number;
	/** Those with the same concurrency key. */
	max_running_per_key?: number;
	rate?: Rate;
}

/** A token bucket: it holds `count` tokens, and gets as many in each `per_ms`, at most 24 h. */
export interface Rate {
	count: number;
	per_ms: number;
}

/** A function, its limits, and how many jobs it has by state. */
export interface FunctionInfo {
	name: string;
	paused: boolean;
	paused_at?: string;
	queued: number;
	scheduled: number;
	active: number;
	dead: number;
	/** There are more jobs than the counts say. */
	at_least?: boolean;
	/** For how long the queued job that waits longest could have run. */
	oldest_queued_ms: number;
	last_dead_at?: string;
	limits?: Limits;
	last_minute: FunctionRates;
}

/** What one manager did with a function's jobs in the last minute. */
export interface FunctionRates {
	enqueued: number;
	claimed: number;
	completed: number;
	failed: number;
	retried: number;
}

/** One page of functions. The cursor is empty on the last one. */
export interface FunctionPage {
	functions: FunctionInfo[];
	cursor: string;
}

/** Asks for jobs to work on. */
export interface ClaimRequest {
	/** Name under which they are leased: 1 to 128 visible ASCII characters. */
	worker: string;
	/** Functions of the jobs, up to 100; default: all. */
	functions?: string[];
	/** 1 to 1000; default 1. */
	limit?: number;
	/** How long the caller has each job: 100 ms to 24 h; default one minute. */
	lease_ms?: number;
	/** How long the manager waits for a job while it has none: at most 5 min; default 0. */
	wait_ms?: number;
}

/** The answer to a heartbeat. */
export interface Beat {
	/** The job was cancelled, and the worker should stop. */
	cancelled: boolean;
	/** How long the lease lasts from the answer on. */
	expires_in_ms: number;
}

/** Ends a job. */
export interface FinishRequest {
	id: string;
	lease_token: string;
	status: "complete" | "failed" | "cancelled";
	/** Encoded as JSON of at most 1 MiB. */
	result?: unknown;
	/** At most 64 KiB. */
	error?: string;
}

/** Puts a worker's job back into the queue. */
export interface RetryRequest {
	lease_token: string;
	/** Time until the next attempt; default: the manager's backoff. */
	delay_ms?: number;
	/** Why the attempt did not do the work. */
	error?: string;
	/** The delivery does not count as an attempt. */
	uncounted?: boolean;
}

/** Where an answer must be recorded before the call returns. See docs/reference/LEDGER.md. */
export type Durability = "local" | "region" | "global";

/** Names one attempt to do a key's work. */
export interface Attempt {
	/** 1 to 255 printable ASCII characters, no blank at an end. */
	key: string;
	/** Separates callers that may use equal keys: up to 255 visible ASCII characters; default empty. */
	scope?: string;
	/** 1 to 64 visible ASCII characters, new for each attempt, for example `randomUUID()`. */
	token: string;
	durability?: Durability;
}

/** Asks for the right to run a key's work once. */
export interface ReserveRequest extends Omit<Attempt, "token"> {
	/** Default: a random one, which the answer has. A program that repeats the call after a crash must give it. */
	token?: string;
	/** Digest of the request: the same key with another fingerprint is refused. Up to 128 visible ASCII characters. */
	fingerprint?: string;
	/** How long the reservation lasts without a renewal. */
	pending_ttl_ms?: number;
	/** How long the outcome counts as unknown after that; 0: not at all. */
	unknown_ttl_ms?: number;
	/** How long to wait for another attempt's outcome; default 0. */
	wait_ms?: number;
}

/** Extends a reservation. */
export interface RenewRequest extends Attempt {
	fingerprint?: string;
	pending_ttl_ms?: number;
	unknown_ttl_ms?: number;
}

/** Records the outcome of a key's work. */
export interface OutcomeRequest extends Attempt {
	fingerprint?: string;
	result: Answer;
	/** How long the outcome is remembered; default: the manager's. */
	ttl_ms?: number;
}

/** An answer in the form of HTTP. */
export interface Answer {
	/** 100 to 999. */
	status: number;
	/** Pairs of a name in lower case and a value, at most 256. */
	headers?: [string, string][];
	/** Text is sent as UTF-8. */
	body?: string | Uint8Array;
	/** The answer was too large to keep; it has no body. */
	body_omitted?: boolean;
}

/** An answer that was recorded. */
export interface RecordedAnswer extends Answer {
	headers: [string, string][];
	body: Uint8Array;
}

/** The caller has the key: run the work, and record its outcome. */
export interface Reserved {
	state: "reserved";
	token: string;
	expires_in_ms: number;
}

/** The work ran (committed), or was refused (rejected): this is the recorded answer. */
export interface Recorded {
	state: "committed" | "rejected";
	expires_in_ms: number;
	result: RecordedAnswer;
}

/** Another attempt has the key. */
export interface Pending {
	state: "pending";
	expires_in_ms: number;
	/** How long the manager asks the caller to wait. */
	retryAfterMs: number;
}

/** The answer to a reserve. */
export type Reservation = Reserved | Recorded | Pending;

/** The ledger's record of a key. */
export interface Entry {
	key: string;
	scope: string;
	state: "pending" | "committed" | "rejected" | "unknown" | "released";
	fingerprint?: string;
	/** Id of the job that a submission under the key enqueued. */
	job_id?: string;
	/** The data centre that recorded the outcome. */
	origin?: string;
	/** The data centre that decides about the pending key, where that is another one. */
	home?: string;
	age_ms: number;
	expires_in_ms: number;
	result?: RecordedAnswer;
}
