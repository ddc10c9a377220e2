package main

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestReleased looks at a release, that of RELEASE_DIR or one for this machine alone: the manager needs no library, or an image
// without any could not run it, and it says its version. The image has that manager.
func TestReleased(t *testing.T) {
	dir := os.Getenv("RELEASE_DIR")
	if dir == "" {
		dir = filepath.Join(t.TempDir(), "release")
		r := release{version: "1.2.3-rc.1", root: root, out: dir, architectures: []string{runtime.GOARCH}, build: buildManager}
		if err := r.run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "oncegate-*-linux-"+runtime.GOARCH))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, want one: %v", files, err)
	}
	info, err := buildinfo.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
		t.Errorf("%v", settings)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(files[0]), "oncegate-"), "-linux-"+runtime.GOARCH)
	out, err := exec.CommandContext(t.Context(), files[0], "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v"+version) {
		t.Errorf("%v: %s", err, out)
	}
	want, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	flat := mutate.Extract(pushed(t, files[0]+"-image.tar"))
	defer flat.Close()
	if !bytes.Equal(filesOf(t, flat)["oncegate"].text, want) {
		t.Error("the image has another manager")
	}
}

// TestBOM: the lists can be read, and have what everybody knows to be in there.
func TestBOM(t *testing.T) {
	dir := built(t)
	// The binaries of the release in these tests are a smaller program without requirements.
	manager, err := filepath.Abs(filepath.Join(root, "build", "oncegate"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(manager, filepath.Join(dir, "manager")); err != nil {
		t.Fatal(err)
	}
	if err := writeBinaryBOM(filepath.Join(dir, "manager"), "1.2.3"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"oncegate-1.2.3-linux-amd64.cdx.json": "pkg:golang/std@1.",
		"manager.cdx.json":                    "pkg:golang/github.com/jackc/pgx/v5@",
		"oncegate-1.2.3.wasm.cdx.json":        "pkg:golang/github.com/tidwall/gjson@",
	} {
		f, err := os.Open(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, c := range *bom.Components {
			found = found || strings.HasPrefix(c.PackageURL, want)
			if strings.HasPrefix(c.PackageURL, "pkg:golang/"+mainModule) || !strings.Contains(c.PackageURL, "@v") && c.Name != "std" {
				t.Errorf("%s has %s, which is a part of the whole or no version that can be fetched", file, c.PackageURL)
			}
		}
		if !found {
			t.Errorf("%s has no %s", file, want)
		}
	}
}
