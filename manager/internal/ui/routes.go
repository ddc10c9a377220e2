package ui

import "github.com/oncegate/oncegate/manager/internal/httpd"

// routes are the pages and forms, below /ui/.
var routes = []route{
	{method: "GET", path: "{$}", handle: livePage("overview", "Overview", (*UI).overview)},
	{method: "GET", path: "events/{name}", stream: true, handle: (*UI).events},
	{method: "GET", path: "login", open: true, handle: (*UI).loginPage},
	{method: "POST", path: "login", open: true, handle: (*UI).takeToken},
	{method: "POST", path: "logout", handle: (*UI).logout},

	{method: "GET", path: "ledger", handle: (*UI).ledgerPage},
	{method: "POST", path: "ledger/answer", roles: operators, handle: (*UI).entryAnswer},
	{method: "POST", path: "ledger/resolve", roles: operators, handle: (*UI).resolveEntry},
	{method: "POST", path: "ledger/delete", roles: administrators, handle: (*UI).deleteEntry},

	{method: "GET", path: "system", handle: livePage("system", "System", (*UI).system)},

	{method: "GET", path: "jobs", handle: (*UI).jobsPage},
	{method: "POST", path: "jobs/pause", roles: operators, handle: (*UI).pauseFunction},
	{method: "POST", path: "jobs/resume", roles: operators, handle: (*UI).pauseFunction},
	{method: "POST", path: "jobs/limits", roles: operators, handle: (*UI).setLimits},
	{method: "POST", path: "jobs/bulk", roles: operators, handle: (*UI).bulk},
	{method: "GET", path: "jobs/{id}", handle: (*UI).jobPage},
	{method: "POST", path: "jobs/{id}/reveal", roles: operators, handle: (*UI).jobPage},
	{method: "POST", path: "jobs/{id}/delete", roles: administrators, handle: (*UI).changeJob},
	{method: "POST", path: "jobs/{id}/{action}", roles: operators, handle: (*UI).changeJob},

	{method: "GET", path: "schedules", handle: (*UI).schedulesPage},
	{method: "POST", path: "schedules/run", roles: operators, handle: (*UI).runSchedule},
	{method: "POST", path: "schedules/{action}", roles: operators, handle: (*UI).changeSchedule},

	{method: "GET", path: "subscriptions", handle: (*UI).subscriptionsPage},
	{method: "POST", path: "subscriptions/end", roles: operators, handle: (*UI).endSubscription},
}

// Whose forms are whose.
const (
	operators      = httpd.Operator
	administrators = httpd.Admin
)

// notices are what a page says after a form, by the value of "done" in its address. No text comes from the address itself:
// anyone could put another one there.
var notices = map[string]string{
	"retried":   "The job is in the queue again.",
	"cancelled": "The job is cancelled. If a worker has it, the worker learns it with its next heartbeat.",
	"replayed":  "A copy of the job is in the queue, and the dead letter is gone.",
	"deleted":   "The job is deleted.",
	"paused":    "The function is paused: workers get none of its jobs.",
	"resumed":   "The function's jobs are given to workers again.",
	"limited":   "The limits are set. They hold for the jobs that start from now on.",
	"unlimited": "The function has no limits.",

	"schedule-run":     "The schedule's job is in the queue. This is the job.",
	"schedule-ran":     "This form was sent before, and this is its job. Load the page of the schedules again for another job.",
	"schedule-paused":  "The schedule is paused: it enqueues no jobs.",
	"schedule-resumed": "The schedule enqueues jobs again.",
	"schedule-deleted": "The schedule is deleted. Its jobs stay.",

	"unsubscribed": "The subscription has ended: events make no more jobs of the function.",

	"resolved-committed": "Settled: duplicates get 410, which says that the work ran.",
	"resolved-rejected":  "Settled: duplicates get 410, which says that the work was refused.",
	"resolved-released":  "Settled: the next attempt runs the work.",
	"entry-deleted":      "Deleted: the key's work can run again.",
}
