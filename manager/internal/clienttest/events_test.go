package clienttest

import (
	"errors"
	"slices"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// TestSendIdempotent: an event whose answers are lost is sent once, and a handler gets it with its name.
func TestSendIdempotent(t *testing.T) {
	m := startManager(t)
	f := &faults{before: map[string]int{"/v1/events/order.paid": 1}, after: map[string]int{"/v1/events/order.paid": 2}}
	c := m.client(f)
	for _, function := range []string{"receipt", "audit", "gone"} {
		if err := c.Subscribe(t.Context(), "order.paid", function); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Unsubscribe(t.Context(), "order.paid", "gone"); err != nil {
		t.Fatal(err)
	}
	sent, err := c.SendIdempotent(t.Context(), client.Event{Name: "order.paid", Payload: map[string]int{"order": 17}, IdempotencyKey: "k"})
	if err != nil || !sent.Replayed || len(sent.Jobs) != 2 || len(m.all()) != 2 {
		t.Fatalf("%+v, %v, %d jobs", sent, err, len(m.all()))
	}
	for i, function := range []string{"audit", "receipt"} {
		j, err := c.Get(t.Context(), sent.Jobs[i].ID)
		if err != nil || j.Function != function || sent.Jobs[i].Function != function || j.Event != "order.paid" || string(j.Payload) != `{"order":17}` {
			t.Errorf("%+v, %v", j, err)
		}
	}
	fresh, err := c.SendIdempotent(t.Context(), client.Event{Name: "order.paid"})
	if err != nil || fresh.Replayed || len(fresh.Jobs) != 2 || len(m.all()) != 4 {
		t.Errorf("with a key of its own: %+v, %v", fresh, err)
	}
	page, err := admin.New(c).Events(t.Context(), 0, "")
	if err != nil || len(page.Events) != 1 || page.Cursor != "" ||
		!slices.EqualFunc(page.Events[0].Subscriptions, []string{"audit", "receipt"}, func(s admin.Subscription, f string) bool { return s.Function == f }) {
		t.Errorf("%+v, %v", page, err)
	}
	var refused *client.Error
	if _, err := c.SendIdempotent(t.Context(), client.Event{Name: "a b"}); !errors.As(err, &refused) || refused.Status != 400 {
		t.Errorf("a bad name: %v", err)
	}
	if err := c.Unsubscribe(t.Context(), "order.paid", "gone"); err != nil {
		t.Errorf("once more: %v", err)
	}
}
