package ship

// TryOnce turns off the retries of a request.
func (s *Shipper) TryOnce() { s.opts.Store.(*retrying).tries = 1 }

// PruneOften makes it prune and look for its manifests at each interval.
func (s *Shipper) PruneOften() { s.opts.pruneEvery = 0 }
