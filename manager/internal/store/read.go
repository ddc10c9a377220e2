package store

import "errors"

// IDs names the records of hits of a collection.
func IDs(c Collection, hits []Hit) []ID {
	ids := make([]ID, len(hits))
	for i := range hits {
		ids[i] = ID{Collection: c, Key: hits[i].Key}
	}
	return ids
}

// Read returns a record as decode reads it, the zero value if there is none. Its error is that of decode, or of Tx.Get.
func Read[T any](tx Tx, c Collection, key string, decode func(key string, value []byte) (T, error)) (v T, err error) {
	value, err := tx.Get(c, key)
	if errors.Is(err, ErrNotFound) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	return decode(key, value)
}
