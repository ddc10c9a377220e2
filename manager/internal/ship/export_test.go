package ship

import "time"

// TryOnce turns off the retries of a request.
func (s *Shipper) TryOnce() { s.opts.Store.(*retrying).tries = 1 }

// PruneOften makes it prune and look for its manifests at each interval.
func (s *Shipper) PruneOften() { s.opts.pruneEvery = 0 }

// Impatient makes it close a snapshot of which the store takes no part in one step.
func (o *Options) Impatient() { o.patience = time.Nanosecond }
