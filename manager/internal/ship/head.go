package ship

import (
	"context"
	"errors"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// head has the least number of runs in the tail of a term, so that a lost run is not taken for one that was never
// shipped. It is written after them.
type head struct {
	Writer string `json:"writer"`
	// Next is the index after the last run.
	Next uint64 `json:"next"`
}

// readHead reads the head of a term that has one. The error is a *DamageError when it is missing or damaged.
func readHead(ctx context.Context, s object.Store, term uint64) (head, object.Version, error) {
	name := logPrefix + "/" + headName(term)
	b, v, err := s.Get(ctx, name)
	if errors.Is(err, object.ErrNotFound) {
		return head{}, "", missing(name)
	}
	if err != nil {
		return head{}, "", err
	}
	h, err := decodeSummed[head](b)
	if err != nil {
		return head{}, "", &DamageError{Object: name, Reason: err.Error()}
	}
	return h, v, nil
}

// newHead makes the head of a new term, before a manifest says that there is one.
func (st *stream) newHead(ctx context.Context) error {
	st.head, st.headAt = head{}, ""
	return st.swapHead(ctx, head{st.opts.writer, st.tailIndex})
}

// writeHead brings the head up to date with what was shipped.
func (st *stream) writeHead(ctx context.Context) error {
	if st.head.Next == st.tailIndex {
		return nil
	}
	return st.swapHead(ctx, head{st.opts.writer, st.tailIndex})
}

func (st *stream) swapHead(ctx context.Context, h head) error {
	v, err := swap(ctx, st.opts.Store, logPrefix+"/"+headName(st.term), encodeSummed(h), st.headAt, func(now []byte) verdict {
		found, err := decodeSummed[head](now)
		switch {
		case err != nil || found.Writer != h.Writer:
			return foreign
		case found == h:
			return own
		}
		return unchanged // an earlier write, whose answer was lost
	})
	if err == nil {
		st.head, st.headAt = h, v
	}
	return err
}
