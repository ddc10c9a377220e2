package sqlite

import (
	"context"
	"errors"
)

// Scrub is store.Capabilities.Scrub: it rewrites the file without free pages, and empties the file of the log. Updates
// wait meanwhile, so it ends when ctx does.
func (s *Store) Scrub(ctx context.Context, _ func(context.Context) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	select {
	case s.w.turn <- struct{}{}:
		defer func() { <-s.w.turn }()
		return s.w.scrub(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *writer) scrub(ctx context.Context) error {
	if err := w.s.Err(); err != nil {
		return err
	}
	if _, err := w.conn.ExecContext(ctx, "VACUUM"); err != nil {
		return mapError(err)
	}
	var busy, pages, moved int
	if err := w.conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &moved); err != nil {
		return mapError(err)
	}
	if busy != 0 {
		return errors.New("sqlite store: readers keep the log's file from being emptied")
	}
	return nil
}
