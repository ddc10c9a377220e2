package languages

// operatorCalls are cases of schedules, and of limits of functions.
var operatorCalls = []call{
	{
		name: "a schedule",
		steps: []step{
			{
				op: "put_schedule", args: `{"name":"report","cron":"0 9 1 1 *","time_zone":"Europe/Vienna","function":"f","payload":{"n":1},"priority":5,"max_attempts":3,"expires_in_ms":60000,
					"on_expiry":"dead_letter","timeout_ms":1500,"missed":"all","overlap":"skip","data_centers":"home"}`,
				want: `{"ok":{"name":"report","cron":"0 9 1 1 *","time_zone":"Europe/Vienna","function":"f","payload":{"n":1},"priority":5,"max_attempts":3,"expires_in_ms":60000,
					"on_expiry":"dead_letter","timeout_ms":1500,"missed":"all","overlap":"skip","data_centers":"home","paused":false,"next_at":"~-01-01T08:00:00","created_at":"*","changed_at":"*","missed_instants":0}}`,
			},
			{
				faults: lost(cutAfter, "PUT /v1/schedules/report", 2), op: "put_schedule", args: `{"name":"report","cron":"@yearly","function":"g"}`,
				want: `{"ok":{"cron":"@yearly","time_zone":"UTC","function":"g","payload":null,"max_attempts":null,"expires_in_ms":null,"missed":"one","overlap":"allow","next_at":"~-01-01T00:00:00"}}`,
			},
			{op: "put_schedule", args: `{"name":"sweep","cron":"@yearly","function":"f","payload":[1]}`, want: `{"ok":{"name":"sweep"}}`},
			{op: "pause_schedule", args: `{"name":"report"}`, want: `{"ok":{"paused":true,"paused_at":"*","next_at":null}}`},
			{op: "get_schedule", args: `{"name":"report"}`, want: `{"ok":{"name":"report","cron":"@yearly","paused":true}}`},
			{op: "list_schedules", args: `{"limit":1}`, want: `{"ok":{"schedules":[{"name":"report","paused":true}],"cursor":"*"}}`, keep: map[string]string{"cursor": "ok.cursor"}},
			{op: "list_schedules", args: `{"limit":5,"cursor":"${cursor}"}`, want: `{"ok":{"schedules":[{"name":"sweep","payload":null}],"cursor":""}}`},
			{op: "resume_schedule", args: `{"name":"report"}`, want: `{"ok":{"paused":false,"paused_at":null,"next_at":"*"}}`},
			{op: "delete_schedule", args: `{"name":"report"}`, want: `{"ok":null}`},
			{op: "get_schedule", args: `{"name":"report"}`, want: `{"error":{"status":404,"code":"not-found","temporary":false}}`},
			{op: "list_schedules", args: `{}`, want: `{"ok":{"schedules":[{"name":"sweep"}],"cursor":""}}`},
		},
		seen: map[string]int{"PUT /v1/schedules/report": 4},
	},
	{
		name: "a schedule that is run now, and its answers are lost",
		steps: []step{
			{op: "put_schedule", args: `{"name":"report","cron":"@yearly","function":"f","payload":{"n":1},"missed":"skip"}`, want: `{"ok":{"missed":"skip"}}`},
			{
				faults: lost(cutAfter, "POST /v1/schedules/report/run", 2), op: "run_schedule", args: `{"name":"report","idempotency_key":"k"}`,
				want: `{"ok":{"function":"f","state":"queued","replayed":true}}`, keep: map[string]string{"id": "ok.id"},
			},
			{op: "run_schedule", args: `{"name":"report","idempotency_key":"k"}`, want: `{"ok":{"id":"${id}","replayed":true}}`},
			{op: "run_schedule", args: `{"name":"report"}`, want: `{"ok":{"function":"f","replayed":false}}`},
			{op: "get", args: `{"id":"${id}"}`, want: `{"ok":{"key":"~report@","payload":{"n":1}}}`},
		},
		jobs: 2, seen: map[string]int{"POST /v1/schedules/report/run": 5},
	},
	{
		name: "schedules that the manager refuses",
		steps: []step{
			{op: "put_schedule", args: `{"name":"report","cron":"never","function":"f"}`, want: `{"error":{"status":400,"code":"invalid-request","temporary":false,"detail":"~cron"}}`},
			{op: "put_schedule", args: `{"name":"no name","cron":"@daily","function":"f"}`, want: `{"error":{"status":400,"code":"invalid-request","temporary":false,"detail":"~name"}}`},
			{op: "put_schedule", args: `{"name":"report","cron":"@daily","function":"f","missed":"some"}`, want: `{"error":{"status":400,"code":"invalid-request","detail":"~missed"}}`},
			{op: "run_schedule", args: `{"name":"report","idempotency_key":"ü"}`, want: `{"error":{"status":0,"temporary":false,"detail":"~idempotency key"}}`},
			{op: "run_schedule", args: `{"name":"none","idempotency_key":"k"}`, want: `{"error":{"status":404,"code":"not-found","temporary":false}}`},
			{op: "delete_schedule", args: `{"name":"none"}`, want: `{"error":{"status":404,"code":"not-found","temporary":false}}`},
		},
	},
	{
		name: "limits of a function",
		steps: []step{
			{op: "submit_batch", args: `{"items":[{"function":"f"},{"function":"f"},{"function":"g"}]}`, want: `{"ok":"*"}`},
			{
				faults: lost(cutAfter, "PUT /v1/functions/f", 2), op: "set_limits", args: `{"function":"f","max_running":1,"max_running_per_key":2,"rate":{"count":100,"per_ms":1500}}`,
				want: `{"ok":null}`,
			},
			{
				op: "functions", args: `{"limit":1}`, want: `{"ok":{"functions":[{"name":"f","paused":false,"queued":2,"limits":{"max_running":1,"max_running_per_key":2,"rate":{"count":100,"per_ms":1500}},
					"last_minute":{"enqueued":2,"claimed":0}}],"cursor":"*"}}`, keep: map[string]string{"cursor": "ok.cursor"},
			},
			{op: "functions", args: `{"cursor":"${cursor}"}`, want: `{"ok":{"functions":[{"name":"g","queued":1,"limits":null}],"cursor":""}}`},
			{op: "claim", args: `{"worker":"w","functions":["f"],"limit":5}`, want: `{"ok":[{"function":"f"}]}`},
			{op: "set_limits", args: `{"function":"f"}`, want: `{"ok":null}`},
			{op: "functions", args: `{"limit":1}`, want: `{"ok":{"functions":[{"name":"f","active":1,"limits":null}]}}`},
			{op: "claim", args: `{"worker":"w","functions":["f"],"limit":5}`, want: `{"ok":[{"function":"f"}]}`},
			{op: "set_limits", args: `{"function":"f","max_running":-1}`, want: `{"error":{"status":400,"code":"invalid-request","temporary":false,"detail":"~max_running"}}`},
			{op: "set_limits", args: `{"function":"no name","max_running":1}`, want: `{"error":{"status":400,"code":"invalid-request","temporary":false,"detail":"~name"}}`},
		},
		jobs: 3, seen: map[string]int{"PUT /v1/functions/f": 5},
	},
}
