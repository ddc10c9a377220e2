package crypt

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// line is a line of a key file whose key has 32 bytes b.
func line(id string, b byte) string {
	return id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, KeyBytes)) + "\n"
}

func ring(t testing.TB, lines ...string) *Keyring {
	t.Helper()
	r, err := Parse([]byte(strings.Join(lines, "")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParse(t *testing.T) {
	r := ring(t, "# keys of the ledger\n", "\n", line("2026-10", 1), "  \r\n", strings.TrimSpace(line("b.C_d-9", 2))+"\r\n", "# the end")
	if got := fmt.Sprint(r.IDs(), " ", r.Current()); got != "[2026-10 b.C_d-9] b.C_d-9" {
		t.Error(got)
	}
	if !r.Has("2026-10") || r.Has("other") {
		t.Error("wrong keys")
	}
	for _, text := range []string{fmt.Sprint(r), fmt.Sprintf("%v %+v %#v %s", r, r, r, r)} {
		if strings.Contains(text, string(bytes.Repeat([]byte{1}, 4))) || strings.Contains(text, "[1 1") || strings.Contains(text, "0x1, 0x1") {
			t.Errorf("a key is printed: %s", text)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	secret := strings.TrimSpace(line("", 7))[1:]
	short := strings.Repeat("7e57", 8) // a key of 16 bytes in hex, which could be an id
	good := line("a", 1)
	many := ""
	for i := range MaxKeys + 1 {
		many += line(fmt.Sprint("k", i), byte(i+1))
	}
	for name, c := range map[string]struct{ file, want string }{
		"empty":             {"", "must have at least one line ID:BASE64"},
		"comments only":     {"# a:b\n\n", "must have at least one line ID:BASE64"},
		"no id":             {secret, "line 1: must be ID:BASE64"},
		"empty id":          {":" + secret, "line 1: must be ID:BASE64"},
		"space in the id":   {"a b:" + secret, "line 1: must be ID:BASE64"},
		"wrong order":       {secret + ":a", "line 1: must be ID:BASE64"},
		"space, no colon":   {"a " + secret, "line 1: must be ID:BASE64"},
		"short":             {good + "b:" + secret[:40] + "\n", `line 2: the key must be 32 bytes in base64`},
		"long":              {"b:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 33)), `line 1: the key must be 32 bytes`},
		"not base64":        {"b:!!" + secret[2:], `line 1: the key must be 32 bytes`},
		"no padding":        {"b:" + strings.TrimRight(secret, "="), `line 1: the key must be 32 bytes`},
		"a word after it":   {"b:" + secret + " last", `line 1: the key must be 32 bytes`},
		"duplicate id":      {good + line("a", 2), `line 2: the id "a" is there twice`},
		"duplicate line":    {good + good, `line 2: the id "a" is there twice`},
		"same key":          {good + "\n" + line("b", 1), `line 3: the keys "a" and "b" are the same`},
		"too many":          {many, "line 65: must have at most 64 keys"},
		"a binary file":     {"\x00\x01\xff" + secret, "line 1: must be ID:BASE64"},
		"long line":         {strings.Repeat("x", maxFileBytes), "line 1: must be ID:BASE64"},
		"key as id and key": {secret + ":" + secret, "line 1: must be ID:BASE64"},
		"short, in front":   {short + ":a", "line 1: the key must be 32 bytes"},
		"short, twice":      {short + ":" + short, "line 1: the key must be 32 bytes"},
		"byte order mark":   {"\ufeff" + good, "line 1: must be ID:BASE64"},
		"line of one word":  {good + "b\n", "line 2: must be ID:BASE64"},
		"31 bytes":          {"b:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 31)), "line 1: the key must be 32 bytes"},
	} {
		_, err := Parse([]byte(c.file))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
			continue
		}
		if text := err.Error(); strings.Contains(text, secret[:8]) || strings.Contains(text, short[:8]) || strings.Contains(text, "\n") {
			t.Errorf("%s: the error has key material or several lines: %s", name, text)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a directory is no key file")
	}
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, bytes.Repeat([]byte("#\n"), maxFileBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(large); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
	good := filepath.Join(dir, "good")
	if err := os.WriteFile(good, []byte(line("a", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Load(good); err != nil || r.Current() != "a" {
		t.Error(r, err)
	}
}

func TestSealOpen(t *testing.T) {
	r := ring(t, line("old", 1), line("new", 2))
	old := ring(t, line("old", 1))
	for _, size := range []int{0, 1, 15, 16, 17, 512, 1 << 20} {
		plain := bytes.Repeat([]byte("4242 "), size/5+1)[:size]
		for _, by := range []*Keyring{r, old} {
			sealed := by.Seal([]byte("before"), "ledger", "3:a/bkey", plain)
			if !bytes.HasPrefix(sealed, []byte("before")) {
				t.Fatal("Seal does not append")
			}
			sealed = sealed[len("before"):]
			if !IsSealed(sealed) || len(sealed) > size+MaxOverhead || SizeOf(sealed) != size {
				t.Errorf("%d bytes: sealed %v, %d bytes, size %d", size, IsSealed(sealed), len(sealed), SizeOf(sealed))
			}
			if id, ok := KeyOf(sealed); !ok || id != by.Current() {
				t.Errorf("key %q %v", id, ok)
			}
			if size > 8 && bytes.Contains(sealed, plain[:8]) {
				t.Error("the plain value is in the sealed one")
			}
			before := bytes.Clone(sealed)
			got, err := r.Open("ledger", "3:a/bkey", sealed)
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes under %s: %v", size, by.Current(), err)
			}
			if !bytes.Equal(before, sealed) {
				t.Error("Open changed what it was given")
			}
		}
	}
}

// TestOpenRefuses: a value that was changed in any bit, cut off anywhere, moved or sealed under another key does not open.
func TestOpenRefuses(t *testing.T) {
	r := ring(t, line("k", 1))
	sealed := r.Seal(nil, "ledger", "3:a/bkey", []byte("4242 4242 4242 4242"))
	for i := range sealed {
		for bit := range 8 {
			b := bytes.Clone(sealed)
			b[i] ^= 1 << bit
			if got, err := r.Open("ledger", "3:a/bkey", b); err == nil {
				t.Fatalf("bit %d of byte %d: %q", bit, i, got)
			}
		}
	}
	for n := range sealed {
		if got, err := r.Open("ledger", "3:a/bkey", sealed[:n]); err == nil {
			t.Fatalf("%d bytes of it: %q", n, got)
		}
	}
	for _, at := range [][2]string{{"jobs", "3:a/bkey"}, {"ledger", "3:a/bkey2"}, {"ledger", "2:a/bkey"}, {"ledge", "r\x003:a/bkey"}, {"", ""}} {
		if _, err := r.Open(at[0], at[1], sealed); !errors.Is(err, ErrDamaged) {
			t.Errorf("moved to %q: %v", at, err)
		}
	}
	if _, err := ring(t, line("k", 2)).Open("ledger", "3:a/bkey", sealed); !errors.Is(err, ErrDamaged) {
		t.Errorf("another key of this id: %v", err)
	}
	var missing *NoKeyError
	if _, err := ring(t, line("other", 1)).Open("ledger", "3:a/bkey", sealed); !errors.As(err, &missing) || missing.ID != "k" {
		t.Errorf("without the key: %v", err)
	}
	later := bytes.Clone(sealed)
	later[1] = 2
	if _, err := r.Open("ledger", "3:a/bkey", later); err == nil || !strings.Contains(err.Error(), "form 2") {
		t.Errorf("a later form: %v", err)
	}
}

// TestSaltsChange: a key takes a new salt after perSalt values, and what was sealed before still opens.
func TestSaltsChange(t *testing.T) {
	r := ring(t, line("k", 1))
	first := r.Seal(nil, "p", "n", []byte("1"))
	r.current.sealing.Load().left.Store(0)
	second := r.Seal(nil, "p", "n", []byte("2"))
	if bytes.Equal(first[4:4+saltBytes], second[4:4+saltBytes]) {
		t.Error("the salt is the same")
	}
	for range 2 * maxDerived { // more salts than are remembered
		r.current.sealing.Load().left.Store(0)
		if _, err := r.Open("p", "n", r.Seal(nil, "p", "n", []byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	for want, sealed := range map[string][]byte{"1": first, "2": second} {
		if got, err := r.Open("p", "n", sealed); err != nil || string(got) != want {
			t.Errorf("%q %v", got, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	r := ring(f, line("k", 1), line("l", 2))
	sealed := r.Seal(nil, "p", "n", []byte("plain"))
	f.Add(sealed)
	f.Add(sealed[:len(sealed)-1])
	f.Add([]byte{0, 1, 255})
	f.Add([]byte{0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := r.Open("p", "n", b)
		if err == nil && string(got) != "plain" { // each process of a fuzzer seals a value of its own
			t.Fatalf("%x opens as %q", b, got)
		}
		id, ok := KeyOf(b)
		if (err == nil) && (!ok || id != "l") {
			t.Fatalf("key %q %v", id, ok)
		}
		if n := SizeOf(b); n < 0 || n > len(b) {
			t.Fatalf("size %d", n)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(line("a", 1) + "# c\n" + line("b", 2)))
	f.Add([]byte("a:b:c\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if (r == nil) == (err == nil) {
			t.Fatal(r, err)
		}
		if err == nil && !r.Has(r.Current()) {
			t.Fatal("no current key")
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	benchmark(b, func(r *Keyring, plain, _ []byte, buf []byte) { r.Seal(buf, "ledger", "15:example.com/payk-1", plain) })
}

func BenchmarkOpen(b *testing.B) {
	benchmark(b, func(r *Keyring, _, sealed, _ []byte) {
		if _, err := r.Open("ledger", "15:example.com/payk-1", sealed); err != nil {
			b.Fatal(err)
		}
	})
}

func benchmark(b *testing.B, f func(r *Keyring, plain, sealed, buf []byte)) {
	r := ring(b, line("k", 1))
	for _, size := range []int{256, 4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			plain := make([]byte, size)
			sealed := r.Seal(nil, "ledger", "15:example.com/payk-1", plain)
			buf := make([]byte, 0, size+MaxOverhead)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for range b.N {
				f(r, plain, sealed, buf)
			}
		})
	}
}
