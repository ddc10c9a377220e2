package ui

import (
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// eventsPerPage is how many events a page lists, each with at most jobs.MaxSubscriptions.
const eventsPerPage = 20

type eventsData struct {
	Events []jobs.Event
	Next   string // cursor
	First  bool
}

// subscriptionsPage lists the events that have subscriptions.
func (u *UI) subscriptionsPage(v *visit) error {
	cursor := v.query("cursor")
	page, err := u.opts.Queue.Events(v.ctx(), eventsPerPage, cursor)
	if err != nil {
		return err
	}
	return v.render("subscriptions", "Events", &eventsData{page.Events, page.Cursor, cursor == ""})
}

// endSubscription ends a subscription once the person has confirmed it.
func (u *UI) endSubscription(v *visit) error {
	event, function := v.form("event"), v.form("function")
	if !v.confirmed() {
		return v.ask(&question{
			Title: "End this subscription?",
			Text: fmt.Sprintf("Events %s that are sent from then on make no job of %s, and nothing makes up for them later. Jobs of earlier events stay. "+
				"A worker that subscribes when it starts begins the subscription again.", event, function),
			Path: "subscriptions/end", Fields: []formField{{"event", event}, {"function", function}}, Button: "End the subscription", Back: "subscriptions",
		})
	}
	s, err := u.opts.Queue.Unsubscribe(v.ctx(), event, function)
	if err != nil {
		return err
	}
	if s.Since.IsZero() {
		return jobs.NotFound("subscription of the function", function)
	}
	v.audit("subscription to an event ended by an operator", "event", event, "function", function)
	return v.redirect("subscriptions?done=unsubscribed")
}
