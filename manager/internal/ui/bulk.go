package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// maxBulk bounds the jobs of one bulk action, and maxRefusals how many refusals its page lists.
const maxBulk, maxRefusals = 1000, 20

// bulkData is a bulk action that waits for its confirmation, or was done.
type bulkData struct {
	Action jobAction
	Search jobSearch
	// Running is how many of the jobs a worker has, where a cancel waits for its confirmation.
	Running int
	// All: the action is about all jobs that Search has, up to maxBulk, and not about those of IDs only.
	All bool
	IDs []string
	// EndedBy is that of the jobs that wait for the confirmation of a retry, see endedBy.
	EndedBy string
	// From is the cursor at which these jobs begin, and Next that at which the action is offered again if there are More.
	From, Next string
	More       bool
	// Done and Refused are set after the confirmation. NotTried ran out of time.
	Confirmed      bool
	Done, NotTried int
	Refused        []refusal
	MoreRefused    int
}

type refusal struct{ ID, Why string }

// Count is how many jobs the action is about.
func (d *bulkData) Count() string { return strconv.Itoa(len(d.IDs)) }

// bulk shows what would be done, and does it once the person has confirmed that.
func (u *UI) bulk(v *visit) error {
	a, err := actionOf(v.form("action"))
	if err != nil {
		return err
	}
	if !v.may(a) {
		return httpd.Forbidden("your token does not allow this")
	}
	d := &bulkData{
		Action: a, Search: searchOf(v.form),
		All: v.form("all") == "yes", IDs: v.r.PostForm["id"], From: v.form("cursor"), Next: v.form("next"), Confirmed: v.confirmed(),
	}
	if d.All && !d.Confirmed {
		page, next, err := u.pageOfJobs(v.ctx(), d.Search, d.From, maxBulk)
		if err != nil {
			return err
		}
		d.IDs, d.Next, d.EndedBy = nil, next, endedBy(page...)
		for _, j := range page {
			d.IDs = append(d.IDs, j.ID)
		}
	}
	d.More = d.Next != ""
	switch {
	case len(d.IDs) == 0 && d.All && d.More:
		return refuse(400, "No job is found", "the filter selects none of the first "+strconv.Itoa(jobs.MaxExamined)+" jobs. Search on in the list, and choose the jobs of a page")
	case len(d.IDs) == 0:
		return refuse(400, "No job is chosen", "choose at least one job in the list, and repeat the action")
	case len(d.IDs) > maxBulk:
		return &jobs.FieldError{Field: "id", Value: strconv.Itoa(len(d.IDs)) + " jobs", Allowed: "at most " + strconv.Itoa(maxBulk)}
	case d.Confirmed:
		if err := u.doBulk(v, d); err != nil {
			return err
		}
	case a.Action == jobs.ActionCancel || a.Action == jobs.ActionRetry && !d.All:
		var chosen []jobs.Job
		for _, id := range d.IDs {
			if j, err := u.opts.Queue.Get(v.ctx(), id); err == nil {
				if j.State == jobs.Active && a.Allows(&j) {
					d.Running++
				}
				j.Payload, j.Result = nil, nil
				chosen = append(chosen, j)
			}
		}
		d.EndedBy = endedBy(chosen...)
	}
	return v.render("bulk", a.Verb+" jobs", d)
}

// doBulk does a confirmed action, for as long as a page may take.
func (u *UI) doBulk(v *visit, d *bulkData) error {
	endedBy, err := v.endedBy()
	if err != nil {
		return err
	}
	for i, err := range u.opts.Queue.DoAll(v.ctx(), d.Action.Action, d.IDs, endedBy) {
		switch {
		case err == nil:
			d.Done++
			v.audit("job "+d.Action.Done+" by an operator", "job", d.IDs[i], "bulk", true)
		case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
			d.NotTried++
		case len(d.Refused) < maxRefusals:
			d.Refused = append(d.Refused, refusal{d.IDs[i], reasonOf(u, err)})
		default:
			d.MoreRefused++
		}
	}
	if d.NotTried > 0 {
		d.Next = d.From // the next part has them again
	}
	return nil
}

// reasonOf says why something was refused, in words for the page.
func reasonOf(u *UI, err error) string {
	var p httpd.Problemer
	if errors.As(err, &p) {
		return p.Problem().Detail
	}
	u.opts.Log.Error("a bulk action failed", "error", err.Error())
	return "something went wrong, the manager's log says more"
}

// prettyJSON lays out a JSON value for reading; what is none stays as it is. More than maxShown bytes are cut, and not
// laid out: that can make them 65 times as long.
func prettyJSON(b []byte) string {
	var out bytes.Buffer
	if len(b) > maxShown {
		return strings.ToValidUTF8(string(b[:maxShown]), "")
	}
	if len(b) == 0 || json.Indent(&out, b, "", "  ") != nil {
		return string(b)
	}
	return out.String()
}
