package cli

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSocketMistakesAreTold: one line and exit code 2, and what is there stays.
func TestSocketMistakesAreTold(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	datagram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "gram"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer datagram.Close()
	const longestPath = len(syscall.RawSockaddrUnix{}.Path) - 1
	long := dir + "/" + strings.Repeat("x", longestPath-len(dir))
	for _, c := range []struct{ args, want string }{
		{"--listen unix:", `--listen "unix:": must be unix: and the path of a file`},
		{"--listen unix:@name", `--listen "unix:@name": must be unix: and the path of a file`},
		{"--listen unix:" + long, fmt.Sprintf(`--listen "unix:%s": the path must have at most %d bytes, it has %d`, long, longestPath, longestPath+1)},
		{"--listen unix:" + dir + "/none/s", fmt.Sprintf(`--listen "unix:%[1]s/none/s": the path must be in a directory that exists; stat %[1]s/none: no such file or directory`, dir)},
		{"--listen unix:" + file, fmt.Sprintf(`--listen "unix:%s": must be the path of a new file, or of a socket that nobody uses; something else is there`, file)},
		{"--listen unix:" + dir + "/gram", fmt.Sprintf(`--listen "unix:%s/gram": must be the path of a new file, or of a socket that nobody uses; something else is there`, dir)},
		{"--listen unix:" + dir + "/s --admin unix:" + dir + "/s", fmt.Sprintf(`--admin "unix:%s/s": a program listens there already`, dir)},
		{"--listen unix:" + dir + "/s --socket-mode 1777", `--socket-mode "1777": must be an octal number from 0 to 777`},
		{"--listen unix:" + dir + "/s --socket-mode rw", `--socket-mode "rw": must be an octal number from 0 to 777`},
	} {
		env, _, stderr := testEnv(nil)
		code := Run(t.Context(), env, append([]string{"serve", "--store", "memory", "--log-level", "error"}, strings.Fields(c.args)...))
		if want := "oncegate serve: " + c.want + "\n"; code != 2 || stderr.String() != want {
			t.Errorf("%s: exit code %d\n got %swant %s", c.args, code, stderr, want)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "s")); err == nil {
		t.Error("a manager that did not start left its socket")
	}
}
