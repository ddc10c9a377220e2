package jobs

import (
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// TestDeletingARecordWakesClaims: a claim waits for a job that a record keeps from it which cannot be read, and looks only
// when it is woken.
func TestDeletingARecordWakesClaims(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		c     store.Collection
		key   string
		limit Limits
		sub   Submission
	}{
		"of a key":      {colSlots, slotsKey("f", "k"), Limits{}, Submission{Function: "f", ConcurrencyKey: "k"}},
		"of a function": {colSlots, "f", Limits{MaxRunning: 1}, Submission{Function: "f"}},
		"of settings":   {colControl, settingsKey, Limits{MaxRunning: 1}, Submission{Function: "f", ConcurrencyKey: "k"}},
		"of a pause":    {colControl, settingsKey, Limits{}, Submission{Function: "f"}},
	} {
		for kind, functions := range map[string][]string{"one": {"f"}, "any": nil} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				q := idleQueue(t)
				if err := q.SetLimits(t.Context(), "f", test.limit); err != nil {
					t.Fatal(err)
				}
				if err := q.Pause(t.Context(), "f"); err != nil {
					t.Fatal(err)
				}
				if _, err := q.Enqueue(t.Context(), test.sub); err != nil {
					t.Fatal(err)
				}
				if test.c == colSlots {
					if err := q.Resume(t.Context(), "f"); err != nil {
						t.Fatal(err)
					}
				}
				if err := q.store.Update(t.Context(), func(tx store.Tx) error {
					if test.c == colSlots {
						return tx.Put(test.c, test.key, []byte{99}, keySlots{waiting: 1}.entries(test.key)...)
					}
					all, err := loadSettings(tx)
					if err != nil {
						return err
					}
					return tx.Put(test.c, test.key, append(all.encode(), 99)) // the pause is in force
				}); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				var got []Job
				go func() {
					var err error
					got, err = q.Claim(t.Context(), ClaimRequest{Worker: "w", Functions: functions, Wait: MaxWait})
					done <- err
				}()
				eventually(t, "the claim waits", func() bool {
					q.idle.mu.Lock()
					defer q.idle.mu.Unlock()
					for _, l := range q.idle.lines {
						if l.watched {
							return true
						}
					}
					return false
				})
				if _, err := q.DeleteUnreadable(t.Context(), test.c, test.key); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the claim ends", func() bool { return len(done) > 0 })
				if err := <-done; err != nil || len(got) != 1 {
					t.Errorf("%d jobs, %v", len(got), err)
				}
			})
		}
	}
}
