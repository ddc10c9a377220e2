package cli

import (
	"strings"
	"testing"
)

func TestDoctorRefusesBadCommandLines(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--manager 127.0.0.1:8090", `--manager "127.0.0.1:8090": must be http:// or https:// with a host, or unix:PATH`},
		{"--manager unix:", `--manager "unix:": must be http://`},
		{"--envoy unix:/x", `--envoy "unix:/x": must be http:// or https:// with a host`},
		{"--envoy ftp://x", `--envoy "ftp://x": must be http:// or https://`},
		{"--sample-seconds 0", `--sample-seconds "0": must be a number of seconds`},
		{"--probe /payments", `--probe "/payments": must be http:// or https://`},
		{"--probe-header authorization", "must be NAME:VALUE"},
		{"all", `unexpected argument "all"`},
		{"--token-file /nowhere", "--token-file: open /nowhere"},
	} {
		env, stdout, stderr := testEnv(nil)
		code := Run(t.Context(), env, append([]string{"doctor", "--json", "--sample-seconds", "0.1", "--timeout-seconds", "60"}, strings.Fields(c.args)...))
		if errs := stderr.String(); code != 2 || stdout.Len() > 0 || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("doctor %s: exit code %d, %q, not 2 and %q", c.args, code, errs, c.want)
		}
	}
}
