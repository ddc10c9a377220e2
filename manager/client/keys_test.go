package client

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

func TestKeysAreNeverRepeated(t *testing.T) {
	a, err := NewKeys("host1.dc1:12345")
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewKeys("host1.dc1:12345") // the same program, started again
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^host1\.dc1:12345:[0-9]+:[0-9a-f]{16}$`)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for _, k := range []*Keys{a, a, b, b} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 1000 {
				key := k.Next()
				mu.Lock()
				if seen[key] || !form.MatchString(key) {
					t.Errorf("key %s", key)
				}
				seen[key] = true
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	if first, second := seen["host1.dc1:12345:1:"+a.nonce], seen["host1.dc1:12345:2000:"+a.nonce]; !first || !second {
		t.Error("the sequence does not grow by one from 1")
	}
}

func TestClientIDs(t *testing.T) {
	long := strings.Repeat("x", maxClientID)
	k, err := NewKeys(long)
	if err != nil {
		t.Fatal(err)
	}
	k.sequence.Store(1<<64 - 2)
	if key := k.Next(); len(key) != api.MaxKeyBytes || api.ValidateKey(key) != nil {
		t.Errorf("the longest key has %d bytes", len(key))
	}
	for _, id := range []string{"", long + "x", "a b", "a\n", "ü"} {
		if _, err := NewKeys(id); err == nil {
			t.Errorf("client id %q was accepted", id)
		}
	}
}

func TestOpenKeysKeepsTheID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "client-id")
	ids := make([]string, 20)
	var wg sync.WaitGroup
	for i := range ids { // all at once
		wg.Add(1)
		go func() {
			defer wg.Done()
			k, err := OpenKeys(file)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = k.ClientID()
		}()
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("ids %q", ids)
		}
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("files left: %v, %v", left, err)
	}
	if err := os.WriteFile(file, []byte("mine:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := OpenKeys(file); err != nil || k.ClientID() != "mine:1" {
		t.Errorf("an id of one's own: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeys(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("an empty file: %v", err)
	}
	if _, err := OpenKeys(t.TempDir()); err == nil {
		t.Error("a directory was accepted")
	}
}
