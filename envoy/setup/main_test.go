package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

// On a machine with nothing: an empty folder, and no program on PATH.
func TestWhatEndsHow(t *testing.T) {
	const noEnvoy = "installing Envoy 1.40.0: "
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args           string
		bin, list, ci  string
		code           int
		stdout, stderr string // what they contain; "" for empty
	}{
		{args: "", code: 2, stderr: `the command is "", it must be default, tests or report`},
		{args: "default all", code: 2, stderr: `the command is "default all"`},
		{args: "default", bin: plain, code: 2, stderr: `ENVOY_BIN is "` + plain + `"`},
		{args: "tests", bin: plain, code: 2, stderr: "permission denied"},
		{args: "tests", list: "1.1.1", code: 2, stderr: `ENVOYS is "1.1.1"`},
		{args: "default", code: 1, stderr: noEnvoy},
		{args: "tests", code: 0, stdout: "the tests run on: gateway\n", stderr: noEnvoy},
		{args: "tests", ci: "true", code: 1, stderr: noEnvoy},
		{args: "tests", list: "1.36.2", code: 1, stderr: "installing Envoy 1.36.2: "},
		{args: "report", code: 0, stdout: "the tests did not run on: envoy-1.40.0 (envoy-1.40.0 is not installed"},
		{args: "report", ci: "true", code: 1, stderr: "the tests did not run on: envoy-1.40.0"},
	} {
		t.Run(tt.args+" "+tt.bin+tt.list+tt.ci, func(t *testing.T) {
			t.Chdir(t.TempDir())
			for name, value := range map[string]string{envoybin.BinEnv: tt.bin, envoybin.ListEnv: tt.list, "CI": tt.ci, "PATH": ""} {
				t.Setenv(name, value)
			}
			in := envoybin.Installer{Toolchain: "toolchain", Pythons: []string{"/nowhere/python3"}}
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), in, strings.Fields(tt.args), &stdout, &stderr)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for got, want := range map[string]string{stdout.String(): tt.stdout, stderr.String(): tt.stderr} {
				if !strings.Contains(got, want) || want == "" && got != "" {
					t.Errorf("%q, want %q in it", got, want)
				}
			}
		})
	}
}
