package schedules

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func sample() *Schedule {
	at := func(n int) time.Time { return time.Date(2026, 1, n, 1, 2, 3, 4000, time.UTC) }
	return &Schedule{
		Name: "s", CreatedAt: at(1), ChangedAt: at(2), PausedAt: at(3), Next: at(4), Last: at(5), LastJob: "j", DecidedBy: "dc1", MissedInstants: 6, OverlappedInstants: 300,
		Spec: Spec{Cron: "* * * * *", TimeZone: "UTC", Function: "f", Payload: []byte(`{"a":1}`), Priority: -7, MaxAttempts: 8, ExpiresIn: time.Hour,
			DeadIfExpired: true, Timeout: time.Minute, Missed: MissedAll, Overlap: OverlapSkip, DataCenters: DataCentersHome},
	}
}

func TestRecordsAreReadAsWritten(t *testing.T) {
	for _, s := range []*Schedule{sample(), {Name: "s", Spec: Spec{Function: "f", Payload: []byte{}, Missed: MissedOne, Overlap: OverlapAllow, DataCenters: DataCentersEach}}} {
		if got, err := decode("s", s.encode()); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%+v, %v; want %+v", got, err, s)
		}
	}
}

func TestDamagedRecordsAreUnreadable(t *testing.T) {
	whole := sample().encode()
	var u *store.UnreadableError
	for n := range whole {
		if _, err := decode("s", whole[:n]); !errors.As(err, &u) || u.Key != "s" || u.Collection != Collection {
			t.Errorf("%d bytes of it: %v", n, err)
		}
	}
	for what, b := range map[string][]byte{"a byte more": append(sample().encode(), 0), "another version": append([]byte{9}, whole[1:]...), "no such policy": append([]byte{1, 9}, whole[2:]...)} {
		if _, err := decode("s", b); !errors.As(err, &u) {
			t.Errorf("%s: %v", what, err)
		}
	}
	bad := sample()
	bad.Function = "a b"
	if _, err := ReadRecord("s", bad.encode()); !errors.As(err, &u) {
		t.Errorf("a bad function: %v", err)
	}
	// Another manager may know more time zones.
	bad = sample()
	bad.TimeZone = "Moon/Tycho"
	if s, err := decode("s", bad.encode()); err != nil {
		t.Error(err)
	} else if _, err := s.calendar(); !errors.As(err, &u) {
		t.Errorf("an unknown zone: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sample().encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decode("s", b)
		if err != nil {
			return
		}
		again, err := decode("s", s.encode())
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%+v, %v; want %+v", again, err, s)
		}
	})
}
