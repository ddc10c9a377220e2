package ship

// TryOnce makes requests that fail not be tried again at once.
func (s *Shipper) TryOnce() { s.opts.Store.(*retrying).tries = 1 }
