package settings

import (
	"time"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// Ship says where and how the log of the engine wal is shipped.
type Ship struct {
	// To is the place; nil: nothing is shipped.
	To                         object.Store
	Interval, Retention, Lease time.Duration
	BacklogBytes               int64

	url string
}

func (s *Settings) shipTable() []setting {
	return []setting{
		text("ship-to", "", "object storage to which the log is shipped as it grows, "+object.Forms+" (engine wal); none when empty", "", &s.Ship.url),
		duration("ship-interval-seconds", "", "a number of seconds between two shipments of what is new: what a lost disk loses", 0.05, 3600, "1", &s.Ship.Interval),
		duration("ship-retention-seconds", "", "a number of seconds: how far back a time to restore to may be", 60, 366*24*3600, "86400", &s.Ship.Retention),
		duration("ship-lease-seconds", "", "a number of seconds for which the manager that ships may be silent before another one ships", 1, 3600, "15", &s.Ship.Lease),
		number("ship-backlog-bytes", "", "size of the log that is kept while the object storage is away, beyond what a start needs", 0, 1<<44, "1073741824", &s.Ship.BacklogBytes),
	}
}

// checkShip opens the place, which connects to nothing.
func (s *Settings) checkShip(getenv func(string) (string, bool)) error {
	if s.Ship.url == "" {
		return nil
	}
	if s.Store != "wal" {
		return Usagef("--ship-to %q: only the engine wal has a log to ship, not %s", s.Ship.url, s.Store)
	}
	var err error
	s.Ship.To, err = Bucket("ship-to", s.Ship.url, getenv)
	return err
}

// Bucket opens the object storage that a flag names.
func Bucket(flag, url string, getenv func(string) (string, bool)) (object.Store, error) {
	bucket, err := object.Open(url, func(name string) string {
		v, _ := getenv(name)
		return v
	})
	if err != nil {
		return nil, Usagef("--%s %v", flag, err)
	}
	return bucket, nil
}
