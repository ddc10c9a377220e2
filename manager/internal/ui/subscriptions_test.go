package ui

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

func (s *site) subscribe(event, function string) {
	s.t.Helper()
	if _, err := s.queue.Subscribe(s.t.Context(), event, function); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) subscribers(event string) (functions []string) {
	s.t.Helper()
	page, err := s.queue.Events(s.t.Context(), 0, "")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range page.Events {
		for _, sub := range e.Subscriptions {
			if e.Name == event {
				functions = append(functions, sub.Function)
			}
		}
	}
	return functions
}

// The page lists events with their subscriptions, and ends one after a question.
func TestSubscriptionsAreListedAndEnded(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true})
	s.login(operatorToken)
	const page, end = "/ui/subscriptions", "/ui/subscriptions/end"
	if got := text(s.get(page).body); !strings.Contains(got, "No function subscribes to an event.") {
		t.Errorf("without events: %s", got)
	}
	s.subscribe("order.paid", "mail.send")
	s.subscribe("order.paid", "stock.count")
	if a := s.get("/ui/jobs"); !strings.Contains(a.body, `href="./subscriptions"`) {
		t.Error("the page of the jobs does not lead there")
	}
	if got := text(s.get(page).body); !strings.Contains(got, "order.paid mail.send now") || !strings.Contains(got, "order.paid stock.count now") {
		t.Errorf("the list: %s", got)
	}
	form := url.Values{"event": {"order.paid"}, "function": {"mail.send"}}
	if a := s.post(end, form); a.status != 403 {
		t.Errorf("without CSRF token: status %d", a.status)
	}
	a := s.submit(page, end, form)
	if got := text(a.body); a.status != 200 || !strings.Contains(got, "End this subscription?") || !strings.Contains(got, "Events order.paid that are sent from then on make no job of mail.send") {
		t.Fatalf("status %d: %s", a.status, got)
	}
	if got := s.subscribers("order.paid"); len(got) != 2 {
		t.Fatalf("it ended without a confirmation: %v", got)
	}
	form = fieldsOf(a.body)
	if a := s.post(end, form); a.status != 303 || a.header.Get("Location") != "./../subscriptions?done=unsubscribed" {
		t.Fatalf("status %d, %s: %s", a.status, a.header.Get("Location"), text(a.body))
	}
	if got := s.subscribers("order.paid"); len(got) != 1 || got[0] != "stock.count" {
		t.Errorf("subscribers: %v", got)
	}
	if a := s.post(end, form); a.status != 404 {
		t.Errorf("the second time: status %d: %s", a.status, text(a.body))
	}
	if log := s.audit.String(); strings.Count(log, "subscription to an event ended by an operator") != 1 || !strings.Contains(log, "event=order.paid function=mail.send") {
		t.Errorf("audit log: %s", log)
	}
}

func TestEventsArePaged(t *testing.T) {
	s := newSite(t, siteOptions{})
	for i := range eventsPerPage + 1 {
		s.subscribe(fmt.Sprintf("event-%02d", i), "f")
	}
	a := s.get("/ui/subscriptions")
	last := fmt.Sprintf("event-%02d", eventsPerPage-1)
	if !strings.Contains(a.body, `href="./subscriptions?cursor=`+last+`">Next page`) {
		t.Fatalf("no next page: %s", a.body)
	}
	if got := text(s.get("/ui/subscriptions?cursor=" + last).body); strings.Count(got, "event-") != 1 || !strings.Contains(got, "First page") {
		t.Errorf("the next page: %s", got)
	}
}

func TestReadersEndNoSubscription(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.ui.opts.Auth = certificatesOnly(t)
	s.subscribe("e", "f")
	if a := s.get("/ui/subscriptions"); a.status != 200 || strings.Contains(a.body, `method="post"`) {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	form := url.Values{"csrf": {s.ui.csrf(nil)}, "event": {"e"}, "function": {"f"}, "confirm": {"yes"}}
	if a := s.post("/ui/subscriptions/end", form); a.status != 403 || len(s.subscribers("e")) != 1 {
		t.Errorf("status %d", a.status)
	}
}

// What a form names is shown as text, also in its question.
func TestQuestionsEscapeWhatTheyShow(t *testing.T) {
	s := newSite(t, siteOptions{})
	s.enqueue(jobs.Submission{Function: "f"})
	form := url.Values{"event": {nasty}, "function": {nasty}}
	a := s.submit("/ui/jobs?function=f", "/ui/subscriptions/end", form)
	if body := fieldValue.ReplaceAllString(a.body, ""); a.status != 200 || strings.Contains(body, "<script>alert") || strings.ContainsAny(body, "\u202e\u0007") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	form.Set("confirm", "yes")
	if a := s.submit("/ui/jobs?function=f", "/ui/subscriptions/end", form); a.status != 400 || strings.Contains(a.body, "<script>alert") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}
