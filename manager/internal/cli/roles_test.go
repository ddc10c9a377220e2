package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const openToAll = "everyone who reaches --listen may read and delete everything"

// TestOpenListenersAreWarnedOf: a manager that other machines reach and that asks for nothing says so.
func TestOpenListenersAreWarnedOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("first-token-of-20-bytes gate\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		warn bool
	}{
		{[]string{"--listen", "0.0.0.0:0"}, true},
		{[]string{"--listen", ":0"}, true},
		{[]string{"--listen", "0.0.0.0:0", "--auth-token-file", file}, false},
		{[]string{"--listen", "127.0.0.1:0"}, false},
		{[]string{"--listen", "localhost:0"}, false},
		{[]string{"--listen", "unix:" + filepath.Join(t.TempDir(), "socket")}, false},
	} {
		s := serveBreakable(t, c.args...)
		s.stop()
		if err := s.ended(t); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(s.stderr.String(), openToAll); got != c.warn {
			t.Errorf("%v: warned: %v\n%s", c.args, got, s.stderr)
		}
	}
}

// TestClientRolesAreReloaded: by SIGHUP, and a mistake changes nothing.
func TestClientRolesAreReloaded(t *testing.T) {
	dir := t.TempDir()
	cert, key, roles := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "roles")
	selfSigned(t, cert, key, 1)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(roles, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("CN=gate gate\n")
	s := serveBreakable(t, "--tls-cert", cert, "--tls-key", key, "--client-ca", cert, "--client-roles-file", roles)
	for text, want := range map[string]string{"CN=gate\n": "client roles not reloaded; the previous one stays in use", "CN=gate operator\n": `"msg":"client roles reloaded"`} {
		write(text)
		waitFor(t, want, func() bool {
			s.sendHangup()
			return strings.Contains(s.stderr.String(), want)
		})
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}
