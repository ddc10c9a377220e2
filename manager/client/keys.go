package client

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/api"
)

// Keys makes idempotency keys {client_id}:{sequence}:{nonce}. The sequence grows with every key. The nonce is random
// for every Keys, so a program that restarts, or another one with the same client id, never repeats a key. It is safe
// for concurrent use.
type Keys struct {
	client   string
	nonce    string
	sequence atomic.Uint64
}

// maxClientID leaves room for the sequence and the nonce.
const maxClientID = api.MaxKeyBytes - 20 - 16 - 2

// NewKeys makes keys for a client id of 1 to 217 visible ASCII characters,
// colons included, for example host1.dc1:12345.
func NewKeys(clientID string) (*Keys, error) {
	if err := checkClientID(clientID); err != nil {
		return nil, err
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return &Keys{client: clientID, nonce: hex.EncodeToString(b[:])}, nil
}

func checkClientID(id string) error {
	if !api.Visible(id, 1, maxClientID) {
		return fmt.Errorf("client id %.64q: must be 1 to %d visible ASCII characters", id, maxClientID)
	}
	return nil
}

// OpenKeys is NewKeys with the client id in the file, so a program keeps its id over restarts. If there is no file,
// OpenKeys creates it, and its directory, with a random id. Two programs that start at the same time and share the file
// get the same id.
func OpenKeys(file string) (*Keys, error) {
	for range 3 {
		b, err := os.ReadFile(file)
		if err == nil {
			k, err := NewKeys(strings.TrimSpace(string(b)))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			return k, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := createID(file); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: the client id vanishes as soon as it is made", file)
}

// createID creates the file complete or not at all: another program must not read half an id. It fails with fs.ErrExist
// when the file exists.
func createID(file string) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".client-id-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	var b [8]byte
	_, _ = rand.Read(b[:])
	_, err = tmp.WriteString("client-" + hex.EncodeToString(b[:]) + "\n")
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Link(tmp.Name(), file)
}

// ClientID is the first part of every key.
func (k *Keys) ClientID() string { return k.client }

// Next returns a new key.
func (k *Keys) Next() string {
	return k.client + ":" + strconv.FormatUint(k.sequence.Add(1), 10) + ":" + k.nonce
}
