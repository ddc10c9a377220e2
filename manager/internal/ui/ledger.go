package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/journal"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

// ledgerData is what the page of the ledger shows: the whole, a list, or an entry.
type ledgerData struct {
	Key, Scope string
	// List is the name of the list, "" for the whole. Lists are all of them.
	List  string
	Lists []ledgerList

	Whole   *ledgerWhole
	Rows    *ledgerRows
	Entry   *entryData
	Minutes []ledger.Minute // the newest first
}

// ledgerList is a list that the page has.
type ledgerList struct {
	Name, Title, Text, Empty string
	state                    api.State
	kind                     journal.IncidentKind
}

var ledgerLists = []ledgerList{
	{Name: "", Title: "Overview"},
	{
		Name: "pending", Title: "Running", state: api.StatePending, Empty: "No attempt is running now.",
		Text: "Reservations whose work runs now. Other attempts at such a key wait, or get an answer to retry later.",
	},
	{
		Name: "unknown", Title: "Unknown outcome", state: api.StateUnknown, Empty: "No key has an unknown outcome.",
		Text: "The work of these keys may have run, and their outcome is unknown. Their duplicates get 409. Find out what happened, then open the key and settle it.",
	},
	{
		Name: "mismatch", Title: "Mismatches", kind: journal.IncidentMismatch, Empty: "No key came with another request.",
		Text: "Calls whose key was used for another request: the fingerprints differ. They get 422.",
	},
	{
		Name: "fenced", Title: "Fenced", kind: journal.IncidentFenced, Empty: "No call was refused because another attempt had its key.",
		Text: "Calls that were refused with 409 because another attempt has their key. After a commit, reject or unknown, compare what both attempts did: the work may have run twice. A release records no work.",
	},
	{
		Name: "full", Title: "No room", kind: journal.IncidentFull, Empty: "No key was refused for want of room.",
		Text: "Keys that found the window full, or whose scope had its share of it. They get 503.",
	},
}

// conflictList is a list of managers in several data centres.
var conflictList = ledgerList{
	Name: "conflict", Title: "Conflicts", Empty: "No key has outcomes of two data centres.",
	Text: "Keys that ran in two data centres before one knew of the other. Retries get the outcome that holds, in all data centres.",
}

func (u *UI) ledgerLists() []ledgerList {
	if u.opts.Origin == "" {
		return ledgerLists
	}
	return append(slices.Clip(ledgerLists), conflictList)
}

// ledgerRows are the rows of a list, up to rowLimit.
type ledgerRows struct {
	ledgerList
	Entries   []entryRow
	Incidents []journal.Incident
	Conflicts []conflictRow
	// Total counts the incidents since Since.
	Total uint64
	Since time.Time
	// ByAge: the entries are in order of their age, and More says that there are others. Else Next leads to the next page.
	ByAge, More bool
	Next        string
}

const rowLimit = 100

type entryRow struct {
	ledger.Entry
	Created, Expires time.Time
}

func rowOf(e ledger.Entry) entryRow {
	now := time.Now()
	return entryRow{e, now.Add(-e.Age), now.Add(e.ExpiresIn)}
}

// ledgerPage shows the ledger, one of its lists, or an entry.
func (u *UI) ledgerPage(v *visit) error {
	d := ledgerData{Key: v.query("key"), Scope: v.query("scope"), List: v.query("list"), Lists: u.ledgerLists()}
	if d.Key != "" {
		return u.showEntry(v, &d, nil)
	}
	title := "Ledger"
	for _, list := range d.Lists {
		if list.Name != d.List {
			continue
		}
		if list.Name == "" {
			var err error
			if d.Whole, err = u.ledgerWhole(v.ctx()); err != nil {
				return err
			}
			d.Minutes = d.Whole.minutes
			return v.render("ledger", title, &d)
		}
		rows, err := u.ledgerRows(v, list)
		if err != nil {
			return err
		}
		d.Rows = rows
		return v.render("ledger", list.Title+" – "+title, &d)
	}
	return u.notFound(v)
}

func (u *UI) ledgerRows(v *visit, list ledgerList) (*ledgerRows, error) {
	rows := &ledgerRows{ledgerList: list, Since: u.opts.Journal.Since()}
	if list.Name == conflictList.Name {
		return rows, u.conflicts(v, rows)
	}
	if list.state == api.StateNone {
		rows.Incidents, rows.Total = u.opts.Journal.Incidents(list.kind, rowLimit)
		return rows, nil
	}
	var entries []ledger.Entry
	var err error
	if rows.ByAge = list.state == api.StatePending && v.query("order") != "expiry"; rows.ByAge {
		entries, rows.More, err = views.PendingByAge(v.ctx(), u.opts.Ledger, rowLimit)
	} else {
		entries, rows.Next, err = views.List(v.ctx(), u.opts.Ledger, list.state, rowLimit, v.query("cursor"))
		if errors.Is(err, ledger.ErrCursor) {
			return nil, errDamagedPage
		}
	}
	for _, e := range entries {
		rows.Entries = append(rows.Entries, rowOf(e))
	}
	return rows, err
}

// conflictRow is a key with the outcomes of several data centres.
type conflictRow struct {
	Scope, Key string
	Holds      conflictOutcome
	Others     []conflictOutcome
	Expires    time.Time
}

type conflictOutcome struct {
	ledger.FeedChange
	Status int
}

func (u *UI) conflicts(v *visit, rows *ledgerRows) error {
	list, next, err := views.Conflicts(v.ctx(), u.opts.Ledger, rowLimit, v.query("cursor"))
	if errors.Is(err, ledger.ErrCursor) {
		return errDamagedPage
	}
	rows.Next = next
	for _, c := range list {
		row := conflictRow{Scope: c.Scope, Key: c.Key, Expires: time.Now().Add(c.ExpiresIn)}
		for _, o := range c.Outcomes {
			out := conflictOutcome{FeedChange: o}
			out.Status, _, _ = api.CheckRawResult(o.Result)
			row.Others = append(row.Others, out)
		}
		row.Holds, row.Others = row.Others[0], row.Others[1:]
		rows.Conflicts = append(rows.Conflicts, row)
	}
	return err
}

var errDamagedPage = refuse(400, "Page not understood", "the address of the page is damaged: begin with the first page")

// refuse is a refusal in words.
func refuse(status int, title, detail string) error {
	return &httpd.Refusal{P: api.Problem{Status: status, Code: api.CodeInvalidRequest, Title: title, Detail: detail}}
}

// entryData is what the page of an entry shows.
type entryData struct {
	Key, Scope string
	// Entry is nil if the ledger has none.
	Entry   *entryRow
	Meaning string
	// Status and BodyBytes are of the recorded answer. Omitted: there is only a status.
	Status, BodyBytes int
	Omitted           bool
	History           journal.History
	Waiting           int // callers, now
	Outcomes          []outcomeRow
	Since             time.Time
	// Found are the scopes that have the key, if the page was asked for it without a scope and the ledger has no such entry.
	// First: the search began at the beginning. Next, unless it is empty, leads on.
	Found []string
	First bool
	Next  string
	// Scopes are others in which this manager has lately seen the key, if the page was asked for it without a scope.
	Scopes []string
	// Answer is the recorded answer, if the person asked for it.
	Answer *answerData
}

type outcomeRow struct {
	Text  string
	Count int
}

// outcomeTexts are in the order in which a page shows them.
var outcomeTexts = []struct{ name, text string }{
	{"replayed", "Replays: attempts that got the recorded answer"},
	{"pending", "Attempts that met a running one and must retry later"},
	{"unknown", "Attempts that got 409, because the outcome is unknown"},
	{"mismatch", "Calls with another fingerprint (422)"},
	{"fenced", "Calls that were refused because another attempt has the key (409)"},
	{"conflict", "Calls that would have changed how the attempt ended (409)"},
	{"repeated", "Calls that were sent again by the same attempt"},
}

var meanings = map[api.State]string{
	api.StatePending:   "The work runs now. Other attempts wait, or get an answer to retry later.",
	api.StateCommitted: "The work ran. Duplicates get the recorded answer.",
	api.StateRejected:  "The work was refused. Duplicates get the recorded refusal.",
	api.StateUnknown:   "The work may have run, and its outcome is unknown. Duplicates get 409 until an operator settles it, the attempt itself reports its outcome, or the time is over.",
}

var changeTexts = map[string]string{
	"reserve": "Reserved: the work began",
	"renew":   "Renewed: the work still runs",
	"commit":  "Committed: the work ran, its answer is recorded",
	"reject":  "Rejected: the work was refused",
	"release": "Released: the work did not run",
	"unknown": "Reported: the outcome is unknown",
	"lapse":   "Ran out without an outcome: unknown",
	"resolve": "Settled by an operator",
	"delete":  "Deleted by an administrator",
}

// changeText says in words what a change was.
func changeText(what string) string { return cmp.Or(changeTexts[what], what) }

// showEntry shows an entry, with its answer if that is given. People have the key at hand, and rarely the scope. So a key
// without a scope and without an entry leads to the only scope that has it, or to a choice of scopes.
func (u *UI) showEntry(v *visit, d *ledgerData, answer *answerData) error {
	var field *api.FieldError
	l, j := u.opts.Ledger, u.opts.Journal
	e, err := l.Get(v.ctx(), d.Scope, d.Key)
	quarantined := d.Scope == "" && errors.Is(err, ledger.ErrQuarantine)
	missing := errors.Is(err, ledger.ErrNotFound) || quarantined
	switch {
	case errors.As(err, &field):
		return refuse(400, "No such key", "the "+field.Field+" "+field.Allowed)
	case err != nil && !missing:
		return err
	}
	d.Entry = &entryData{Key: d.Key, Scope: d.Scope, History: j.History(d.Scope, d.Key), Waiting: l.Waiting(d.Scope, d.Key), Since: j.Since(), Answer: answer}
	for _, o := range outcomeTexts {
		if n := d.Entry.History.Outcomes[o.name]; n > 0 {
			d.Entry.Outcomes = append(d.Entry.Outcomes, outcomeRow{o.text, n})
		}
	}
	if d.Scope == "" {
		if missing {
			if err := u.findScopes(v, d.Entry); err != nil {
				return err
			}
			if quarantined && len(d.Entry.Found) == 0 {
				return err
			}
		}
		for _, scope := range j.ScopesOf(d.Key) {
			if scope != "" && !slices.Contains(d.Entry.Found, scope) {
				d.Entry.Scopes = append(d.Entry.Scopes, scope)
			}
		}
	}
	known := slices.Concat(d.Entry.Found, d.Entry.Scopes)
	if h := d.Entry.History; missing && d.Entry.First && d.Entry.Next == "" && len(known) == 1 && len(h.Changes) == 0 && len(h.Outcomes) == 0 {
		return v.redirect("ledger" + string(query("key", d.Key, "scope", known[0])))
	}
	if !missing {
		row := rowOf(e)
		d.Entry.Entry, d.Entry.Meaning = &row, meanings[e.State]
		if len(e.Result) > 0 {
			d.Entry.Status, d.Entry.BodyBytes, _ = api.CheckRawResult(e.Result)
			if d.Entry.Omitted = api.RawBodyOmitted(e.Result); d.Entry.Omitted {
				d.Entry.Meaning = "The work ran, and its answer is not recorded. Duplicates get 410."
			}
		}
	}
	return v.render("ledger", "Key – Ledger", d)
}

const (
	// scopesShown bounds the scopes of a key that a page shows.
	scopesShown = 20
	// scopePages is how many times views.MaxExamined entries a page looks through for them.
	scopePages = 10
)

// findScopes finds scopes that have the key, from the page's cursor on.
func (u *UI) findScopes(v *visit, d *entryData) error {
	d.Next = v.query("cursor")
	d.First = d.Next == ""
	for range scopePages {
		entries, next, err := views.Find(v.ctx(), u.opts.Ledger, d.Key, api.StateNone, scopesShown-len(d.Found), d.Next)
		if errors.Is(err, ledger.ErrCursor) {
			return errDamagedPage
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Scope != "" && !slices.Contains(d.Found, e.Scope) {
				d.Found = append(d.Found, e.Scope)
			}
		}
		if d.Next = next; next == "" || len(d.Found) >= scopesShown {
			break
		}
	}
	slices.Sort(d.Found)
	return nil
}

// answerData is a recorded answer.
type answerData struct {
	Status  int
	Headers []api.Header
	// Text is the body, up to maxShown bytes of it; Cut says that there is more. Binary: the body is no text.
	Text        string
	Cut, Binary bool
	Bytes       int
}

const maxShown = 64 << 10

// entryAnswer shows an entry with its recorded answer. Whose answers these are is logged.
func (u *UI) entryAnswer(v *visit) error {
	d := ledgerData{Key: v.form("key"), Scope: v.form("scope"), Lists: u.ledgerLists()}
	e, err := u.opts.Ledger.Get(v.ctx(), d.Scope, d.Key)
	if err != nil {
		return u.entryProblem(err)
	}
	if len(e.Result) == 0 {
		return refuse(409, "No answer", "the entry has no recorded answer: it is "+e.State.String())
	}
	var r api.Result
	if err := r.ParseRaw(e.Result); err != nil {
		return err
	}
	v.audit("recorded answer shown", "scope", e.Scope, "key", e.Key)
	a := &answerData{Status: r.Status, Headers: r.Headers, Bytes: len(r.Body)}
	shown := r.Body[:min(len(r.Body), maxShown)]
	if a.Cut = len(shown) < len(r.Body); a.Cut {
		for len(shown) > 0 && !utf8.RuneStart(r.Body[len(shown)]) { // not within a character
			shown = shown[:len(shown)-1]
		}
	}
	if a.Binary = !utf8.Valid(shown); !a.Binary {
		a.Text = string(shown)
	}
	return u.showEntry(v, &d, a)
}

// entryProblem says why an entry cannot be changed.
func (u *UI) entryProblem(err error) error {
	var field *api.FieldError
	var state *ledger.StateError
	var imported *ledger.ImportedError
	switch {
	case errors.As(err, &imported):
		return refuse(409, "Of another data centre", imported.Error()+" (DELETE /v1/ledger/entries)")
	case errors.Is(err, ledger.ErrNotFound):
		return refuse(404, "No such entry", "the ledger has no entry of this key any more")
	case errors.As(err, &field):
		return refuse(400, "Form not understood", field.Error())
	case errors.As(err, &state):
		return refuse(409, "Settled already", "the entry is "+state.State.String()+" by now: only one that is unknown can be settled")
	}
	return err
}

// maxReason bounds a reason in bytes.
const maxReason = 500

// intent reads what the forms that change an entry have in common.
func intent(v *visit) (key, scope, reason string, err error) {
	key, scope, reason = v.form("key"), v.form("scope"), v.form("reason")
	if reason == "" || len(reason) > maxReason {
		return "", "", "", refuse(400, "Reason missing", fmt.Sprintf("say why, in up to %d bytes: the audit log keeps it", maxReason))
	}
	return key, scope, reason, nil
}

// changing is the context of a change, which the entry's history records as made on this page.
func changing(v *visit) context.Context {
	who := "web page"
	if v.person.Number > 0 {
		who = fmt.Sprintf("web page, token %d", v.person.Number)
	}
	return ledger.WithCaller(v.ctx(), who)
}

func entryPath(key, scope, done string) string {
	return "ledger" + string(query("key", key, "scope", scope, "done", done))
}

// resolveEntry settles a key whose outcome is unknown.
func (u *UI) resolveEntry(v *visit) error {
	key, scope, reason, err := intent(v)
	if err != nil {
		return err
	}
	var res ledger.Resolution
	switch as := v.form("as"); as {
	case "released":
		if v.form("sure") != "yes" {
			return refuse(400, "Not confirmed", "tick the box: the key's work runs again, so it must be certain that it did not run and does not run any more")
		}
		res.As = api.StateReleased
	case "committed", "rejected":
		var status int
		if _, err := fmt.Sscanf(v.form("status"), "%d", &status); err != nil || status < 200 || status > 599 || v.form("status") != fmt.Sprint(status) {
			return refuse(400, "Status missing", "the status of the answer must be a number from 200 to 599")
		}
		res.As, _ = api.ParseState(as)
		answer := api.Result{Status: status, BodyOmitted: true}
		res.Result = answer.AppendRaw(nil)
	default:
		return refuse(400, "Choice missing", "choose what happened: committed, rejected or released")
	}
	e, err := u.opts.Ledger.Resolve(changing(v), scope, key, res)
	if err != nil {
		return u.entryProblem(err)
	}
	v.audit("entry resolved as "+res.As.String()+" by an operator", "scope", e.Scope, "key", e.Key, "state", api.StateUnknown.String(), "reason", reason)
	return v.redirect(entryPath(key, scope, "resolved-"+res.As.String()))
}

// deleteEntry removes an entry in any state.
func (u *UI) deleteEntry(v *visit) error {
	key, scope, reason, err := intent(v)
	if err != nil {
		return err
	}
	if v.form("sure") != "yes" {
		return refuse(400, "Not confirmed", "tick the box: after the deletion the key's work can run again")
	}
	e, err := u.opts.Ledger.Delete(changing(v), scope, key)
	if err != nil {
		return u.entryProblem(err)
	}
	v.audit("entry deleted by an administrator", "scope", e.Scope, "key", e.Key, "state", e.State.String(), "reason", reason)
	return v.redirect(entryPath(key, scope, "entry-deleted"))
}
