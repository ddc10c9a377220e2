package store

import (
	"cmp"
	"fmt"
)

// Every engine applies these checks to its arguments, so that all engines reject the same things. Misuse that only a
// bug can cause (a malformed collection name) is an ordinary error too: an engine never panics on its arguments.

// CheckName returns an error unless s may name a collection or an index.
func CheckName[S ~string | ~[]byte](s S) error {
	if len(s) < 1 || len(s) > 32 {
		return fmt.Errorf("store: name %q: must be 1 to 32 characters", s)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return fmt.Errorf("store: name %q: only a-z, 0-9 and _ are allowed", s)
		}
	}
	return nil
}

// CheckKey returns an error for names that CheckName rejects, for an empty key, and, as ErrTooLarge, for a key longer
// than MaxKeyBytes.
func CheckKey(c Collection, key string) error {
	if err := CheckName(c); err != nil {
		return err
	}
	if key == "" {
		return fmt.Errorf("store: collection %s: empty key", c)
	}
	if len(key) > MaxKeyBytes {
		return fmt.Errorf("%w: key of %d bytes in %s, at most %d", ErrTooLarge, len(key), c, MaxKeyBytes)
	}
	return nil
}

// CheckPut checks the arguments of Put and returns how many bytes they count toward MaxTxBytes.
func CheckPut(c Collection, key string, value []byte, entries []Entry) (int, error) {
	if err := CheckKey(c, key); err != nil {
		return 0, err
	}
	if len(value) > MaxValueBytes {
		return 0, fmt.Errorf("%w: value of %d bytes in %s, at most %d", ErrTooLarge, len(value), c, MaxValueBytes)
	}
	n := len(key) + len(value)
	for i, e := range entries {
		if err := CheckName(e.Index); err != nil {
			return 0, err
		}
		if len(e.SortKey) > MaxKeyBytes {
			return 0, fmt.Errorf("%w: sort key of %d bytes in %s.%s, at most %d", ErrTooLarge, len(e.SortKey), c, e.Index, MaxKeyBytes)
		}
		for _, o := range entries[:i] {
			if o.Index == e.Index {
				return 0, fmt.Errorf("store: collection %s: two entries of one record in index %s", c, e.Index)
			}
		}
		n += len(e.Index) + len(e.SortKey) + len(key)
	}
	return n, nil
}

// CheckTx returns ErrTooLarge when the bytes of a transaction exceed MaxTxBytes.
func CheckTx(bytes int) error {
	if bytes > MaxTxBytes {
		return fmt.Errorf("%w: transaction of more than %d bytes", ErrTooLarge, MaxTxBytes)
	}
	return nil
}

// CheckLen checks the arguments of Len.
func CheckLen(c Collection, index string) error {
	if index == "" {
		return CheckName(c)
	}
	return checkIndex(c, index)
}

func checkIndex(c Collection, index string) error {
	return cmp.Or(CheckName(c), CheckName(index))
}

// CheckScan checks the arguments of Scan. Bounds longer than any key are ErrTooLarge, because engines rely on limited
// lengths.
func CheckScan(c Collection, index string, r Range) error {
	if err := checkIndex(c, index); err != nil {
		return err
	}
	if r.Limit < 1 || r.Limit > MaxScan {
		return fmt.Errorf("store: scan of %s.%s: limit %d, must be 1 to %d", c, index, r.Limit, MaxScan)
	}
	n := max(len(r.From), len(r.To))
	if r.After != nil {
		n = max(n, len(r.After.SortKey), len(r.After.Key))
	}
	if n > MaxKeyBytes {
		return fmt.Errorf("%w: scan of %s.%s: bound of %d bytes, at most %d", ErrTooLarge, c, index, n, MaxKeyBytes)
	}
	for _, id := range r.With {
		if err := CheckKey(id.Collection, id.Key); err != nil {
			return err
		}
	}
	return nil
}
