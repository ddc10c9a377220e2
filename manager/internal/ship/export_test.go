package ship

// TryOnce makes requests that fail not be tried again at once.
func (s *Shipper) TryOnce() { s.opts.Store.(*retrying).tries = 1 }

// PruneOften makes it look at each interval what is too old, and whether the manifests are there.
func (s *Shipper) PruneOften() { s.opts.pruneEvery = 0 }
