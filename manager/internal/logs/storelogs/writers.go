package storelogs

import (
	"context"
	"encoding/binary"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// number reads a record that has one number.
func number(_ string, b []byte) (uint64, error) {
	n, _ := binary.Uvarint(b)
	return n, nil
}

// writer reads a writer's epoch; 0 when it has none.
func (h *head) writer(tx store.Tx, name string) (uint64, error) {
	return store.Read(tx, writers, h.prefix+name, number)
}

// OpenWriter begins the next epoch of a writer.
func (e *Engine) OpenWriter(ctx context.Context, name, writer string) (epoch uint64, err error) {
	if err := logs.CheckWriter(writer); err != nil {
		return 0, err
	}
	if err := logs.CheckName(name); err != nil {
		return 0, err
	}
	err = e.update(ctx, func(tx store.Tx) error {
		h, err := getHead(tx, name)
		if err != nil {
			return err
		}
		if epoch, err = h.writer(tx, writer); err != nil {
			return err
		}
		floor, err := e.opts.Restored.EpochFloor(tx)
		if err != nil {
			return err
		}
		switch {
		case epoch > 0:
			epoch = max(epoch, floor) + 1
		case h.Writers >= logs.MaxWriters:
			return logs.TooManyWriters()
		default:
			epoch = max(h.Floor, floor) + 1
			h.Writers++
			if err := h.put(tx); err != nil {
				return err
			}
		}
		key := h.prefix + writer
		return tx.Put(writers, key, binary.AppendUvarint(nil, epoch), store.Entry{Index: order, SortKey: key})
	})
	return epoch, err
}

// RemoveWriter forgets a writer, which makes room for another one. What comes with any of its epochs is refused from then
// on.
func (e *Engine) RemoveWriter(ctx context.Context, name, writer string) error {
	if err := logs.CheckName(name); err != nil {
		return err
	}
	return e.update(ctx, func(tx store.Tx) error {
		h, err := getHead(tx, name)
		if err != nil {
			return err
		}
		if len(writer) > logs.MaxWriterBytes || writer == "" {
			return logs.NoSuchWriter(writer)
		}
		epoch, err := h.writer(tx, writer)
		if err != nil {
			return err
		}
		if epoch == 0 {
			return logs.NoSuchWriter(writer)
		}
		h.Floor = max(h.Floor, epoch)
		h.Writers--
		if err := tx.Delete(writers, h.prefix+writer); err != nil {
			return err
		}
		return h.put(tx)
	})
}

// Writers describes up to limit writers of a log whose names are greater than after, in order of their names.
func (e *Engine) Writers(ctx context.Context, name, after string, limit int) (all []logs.Writer, err error) {
	h, err := e.head(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(after) > logs.MaxWriterBytes {
		return nil, logs.CheckWriter(after)
	}
	err = e.view(ctx, func(tx store.Tx) error {
		all = nil
		r := store.Range{From: h.prefix, Limit: limit}
		if after != "" {
			r.After = &store.Hit{SortKey: h.prefix + after, Key: h.prefix + after}
		}
		hits, err := tx.Scan(writers, order, r)
		if err != nil {
			return err
		}
		var keys []store.ID
		for _, hit := range hits {
			if !strings.HasPrefix(hit.Key, h.prefix) {
				break
			}
			keys = append(keys, store.ID{Collection: writers, Key: hit.Key})
		}
		if err := tx.Prefetch(keys); err != nil {
			return err
		}
		for _, k := range keys {
			name := k.Key[len(h.prefix):]
			epoch, err := h.writer(tx, name)
			if err != nil {
				return err
			}
			if epoch > 0 {
				all = append(all, logs.Writer{Name: name, Epoch: epoch})
			}
		}
		return nil
	})
	return all, err
}
