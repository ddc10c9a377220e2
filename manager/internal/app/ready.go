package app

import (
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store/downtime"
)

// unready returns what says why /readyz is 503 while the store lacks standbys that it needs, or cannot be reached.
func (a *app) unready(s *downtime.Store) func() string {
	replication := a.store.Capabilities().Replication
	return func() string {
		if replication != nil {
			if missing := replication().Missing; missing != "" {
				return missing
			}
		}
		if d := s.Unreached(); d > 0 {
			return fmt.Sprintf("no write has reached the store for %v", d.Round(time.Second))
		}
		return ""
	}
}

// unreached logs that the shared store cannot be reached, and that it is reached again. It logs why, which /readyz does not
// show to everyone.
func (a *app) unreached(err error) {
	if err != nil {
		a.log.Warn("the store cannot be reached, the manager is not ready", "error", err.Error())
		return
	}
	a.log.Info("the store is reached again")
}
