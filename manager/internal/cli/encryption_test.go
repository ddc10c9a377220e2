package cli

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// keyFile writes a key file with one key.
func keyFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("k:"+testKey("k")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// testKey is a key in base64.
func testKey(name string) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%-32.32s", name))
}

// TestEncryptionKeyFile: a file that is not right is exit code 2 and one line, without anything of the file.
func TestEncryptionKeyFile(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{
		"":                       "must have at least one line ID:BASE64",
		testKey("a"):             "line 1: must be ID:BASE64",
		"a:" + testKey("a")[:20]: "line 1: the key must be 32 bytes in base64",
		"a:" + testKey("a") + "\na:" + testKey("b"): `line 2: the id "a" is there twice`,
	} {
		file := filepath.Join(dir, "keys")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		env, _, stderr := testEnv(nil)
		code := Run(t.Context(), env, []string{"serve", "--store", "memory", "--listen", "127.0.0.1:0", "--encryption-key-file", file})
		if text := stderr.String(); code != 2 || !strings.Contains(text, want) || strings.Contains(text, testKey("a")[:16]) || strings.Count(text, "\n") != 1 {
			t.Errorf("%q: exit code %d: %s", want, code, text)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--encryption-key-file", []string{"--store", "memory", "--encryption-key-file", filepath.Join(dir, "none")}},
		{"--encryption-key-file", []string{"--store", "memory", "--encryption-key-file", ""}},
		{"--encryption-decrypt-only: needs --encryption-key-file", []string{"--store", "redis", "--store-dsn", "redis://127.0.0.1:1", "--encryption-decrypt-only"}},
		{"--encryption-decrypt-only: the engine memory has one manager", []string{"--store", "memory", "--encryption-key-file", keyFile(t), "--encryption-decrypt-only"}},
	} {
		env, _, stderr := testEnv(nil)
		code := Run(t.Context(), env, append([]string{"serve", "--listen", "127.0.0.1:0"}, c.args...))
		if text := stderr.String(); code != 2 || !strings.Contains(text, c.want) || strings.Count(text, "\n") != 1 {
			t.Errorf("%q: exit code %d: %s", c.args, code, text)
		}
	}
}
