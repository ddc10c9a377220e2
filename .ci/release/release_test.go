package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/oncegate/oncegate/envoy"
	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/manager/managertest/ports"
)

const (
	root = "../.."
	// patience is how long a busy machine may take.
	patience = 2 * time.Minute
)

// built makes a release of what `make build` has built, with a small program in the manager's place.
func built(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "release")
	r := release{version: "1.2.3", root: root, out: out, architectures: architectures, build: func(_ context.Context, _, _, _, to string) error {
		text, err := os.ReadFile(root + "/build/setup")
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o755)
	}}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out
}

// pushed loads an archive and sends it through a registry, as `crane push` and a consumer's pull do.
func pushed(t *testing.T, archive string) v1.Image {
	t.Helper()
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	return throughRegistry(t, img)
}

func throughRegistry(t *testing.T, img v1.Image) v1.Image {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/oncegate/x:1.2.3", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	return pulled
}

// pluginOf reads the module as Istio and Envoy Gateway do: from plugin.wasm in the last layer, which must be a tar+gzip by its type.
func pluginOf(t *testing.T, img v1.Image, layerType types.MediaType) []byte {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) == 0 {
		t.Fatal("no layers", err)
	}
	last := layers[len(layers)-1]
	if mt, err := last.MediaType(); err != nil || mt != layerType {
		t.Fatalf("the layer is %s (%v), want %s", mt, err, layerType)
	}
	compressed, err := last.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer compressed.Close()
	gz, err := gzip.NewReader(compressed)
	if err != nil {
		t.Fatal(err)
	}
	return filesOf(t, gz)["plugin.wasm"].text
}

func filesOf(t *testing.T, r io.Reader) map[string]entry {
	t.Helper()
	out := map[string]entry{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		out[h.Name] = entry{h.Name, h.Mode, text}
	}
}

// TestTwiceTheSame: two releases of the same sources have the same digests, and SHA256SUMS has every file.
func TestTwiceTheSame(t *testing.T) {
	a, b := built(t), built(t)
	one, err := os.ReadFile(filepath.Join(a, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(filepath.Join(b, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Errorf("the first time:\n%s\nthe second time:\n%s", one, two)
	}
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	cmd.Dir = a
	if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != 12 {
		t.Errorf("%v, want 12 files:\n%s", err, out)
	}
}

// TestModuleImage: what is pulled is the module that was built, in both types of image that registries keep.
func TestModuleImage(t *testing.T) {
	want, err := os.ReadFile(root + "/build/oncegate.wasm")
	if err != nil {
		t.Fatal(err)
	}
	img, err := moduleImage(want, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := save(file, "oncegate/gate:1.2.3", img); err != nil {
		t.Fatal(err)
	}
	pulled := throughRegistry(t, img)
	if mt, err := pulled.MediaType(); err != nil || mt != types.OCIManifestSchema1 {
		t.Errorf("%s, %v", mt, err)
	}
	if got := pluginOf(t, pulled, types.OCILayer); !bytes.Equal(got, want) {
		t.Error("the OCI image has another module")
	}
	got := pluginOf(t, pushed(t, file), types.DockerLayer)
	if !bytes.Equal(got, want) {
		t.Fatal("the archive has another module")
	}
	binaries, missing, err := envoybin.ForTests(t.Context(), root+"/build/toolchain")
	if err != nil {
		t.Fatal(err)
	}
	if len(binaries) == 0 {
		if envoybin.Required() {
			t.Fatalf("missing: %v", missing)
		}
		t.Skipf("missing: %v", missing)
	}
	loadInEnvoy(t, binaries[0], got)
}

// loadInEnvoy starts an Envoy with the module, without a manager. The gate then refuses a request with a key by itself.
func loadInEnvoy(t *testing.T, envoyBinary envoybin.Binary, module []byte) {
	t.Helper()
	dir := t.TempDir()
	wasm, admin := filepath.Join(dir, "plugin.wasm"), filepath.Join(dir, "admin")
	if err := os.WriteFile(wasm, module, 0o644); err != nil {
		t.Fatal(err)
	}
	config, err := envoy.Local{
		Mode: "headers", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Upstream: closedAddress(t), Manager: closedAddress(t), Module: wasm,
	}.Bootstrap()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, envoyBinary.Path, "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		cancel()
		<-ended
	}()
	listener := ""
	for listener == "" {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("Envoy ended: %v\n%s", err, out.String())
		case <-ctx.Done():
			t.Fatal("Envoy is not ready")
		case <-time.After(20 * time.Millisecond):
			if address, err := os.ReadFile(admin); err == nil && fetch(ctx, "http://"+string(address)+"/ready") == "LIVE\n" {
				listener = firstListener(fetch(ctx, "http://"+string(address)+"/listeners?format=json"))
			}
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener+"/payments", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "a")
	req.Header.Set("Authorization", "Bearer a")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || !bytes.Contains(text, []byte("urn:oncegate:problem:")) {
		t.Errorf("%v: %d %s", err, resp.StatusCode, text)
	}
}

// closedAddress is one that nothing listens on until the test ends.
func closedAddress(t *testing.T) string {
	t.Helper()
	p, err := ports.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	return p.Address
}

func fetch(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

func firstListener(text string) string {
	var list struct {
		Statuses []struct {
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if json.Unmarshal([]byte(text), &list) != nil || len(list.Statuses) == 0 {
		return ""
	}
	s := list.Statuses[0].Address.Socket
	return net.JoinHostPort(s.Address, jsonNumber(s.Port))
}

func jsonNumber(n int) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// TestManagerImage: the image has the manager, roots and nothing that runs, and its user has no rights.
func TestManagerImage(t *testing.T) {
	dir := built(t)
	img := pushed(t, filepath.Join(dir, "oncegate-1.2.3-linux-arm64-image.tar"))
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Config.User != "65532:65532" || config.Architecture != "arm64" || config.Config.Entrypoint[0] != "/oncegate" || !config.Created.Equal(epoch) {
		t.Errorf("%+v", config)
	}
	flat := mutate.Extract(img)
	defer flat.Close()
	files := filesOf(t, flat)
	want, err := os.ReadFile(filepath.Join(dir, "oncegate-1.2.3-linux-arm64"))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range files {
		switch executable := f.mode&0o111 != 0; {
		case name == "oncegate" && (!executable || !bytes.Equal(f.text, want)):
			t.Error("the manager is another one, or does not run")
		case name != "oncegate" && executable:
			t.Errorf("%s can be run", name)
		case f.mode&0o6000 != 0:
			t.Errorf("%s runs with the rights of another user", name)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"].text) {
		t.Error("no roots")
	}
	if n := bytes.Count(roots(), []byte("BEGIN CERTIFICATE")); n < 100 {
		t.Errorf("%d roots", n)
	}
}

// TestPackage installs the client's package in a program, which the compiler checks against the package's types and which then
// runs.
func TestPackage(t *testing.T) {
	npm, err := filepath.Abs(filepath.Join(built(t), "oncegate-1.2.3-npm.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := filepath.Abs(root + "/build/node/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const program = `import { Client, RetryAfter, hasCode, type Handler } from "@oncegate/client";
import { idempotent } from "@oncegate/client/handlertest";
const send: Handler<{ to: string }> = async (job, { signal }) => {
	if (signal.aborted) throw new RetryAfter("later", 1000);
	return job.payload.to.length;
};
const worker = new Client({ url: "http://127.0.0.1:1" }).worker({ handlers: { send }, name: "w" });
await idempotent(send, { to: "ann" }, () => 0);
console.log(worker.name, hasCode(new Error(), "fenced"));
`
	for name, text := range map[string]string{"package.json": `{"type":"module","private":true}`, "program.ts": program} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"npm", "install", "--offline", "--no-audit", "--no-fund", npm},
		{"node", node + "/typescript/bin/tsc", "--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", node + "/@types", "program.ts"},
		{"node", "program.js"},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil || args[1] == "program.js" && string(out) != "w false\n" {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "node_modules/@oncegate/client/package.json"))
	if err != nil || !bytes.Contains(text, []byte(`"version": "1.2.3"`)) {
		t.Errorf("%v: %s", err, text)
	}
	for _, name := range []string{"LICENSE", "README.md"} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules/@oncegate/client", name)); err != nil {
			t.Error(err)
		}
	}
}

// TestWheel installs the Python client's wheel with pip, which checks its list of files, and runs a program with it.
func TestWheel(t *testing.T) {
	wheel := filepath.Join(built(t), "oncegate-1.2.3-py3-none-any.whl")
	dir := t.TempDir()
	const program = `import importlib.metadata, oncegate, oncegate.testing
oncegate.testing.check_idempotent(lambda job, context: job.id, None, lambda: 0)
print(importlib.metadata.version("oncegate"), oncegate.Worker(oncegate.Client("http://127.0.0.1:1"), {"f": print}, name="w").name)`
	for _, args := range [][]string{
		{"-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-deps", "--quiet", "--root-user-action", "ignore", "--target", dir, wheel},
		{"-c", program},
	} {
		cmd := exec.CommandContext(t.Context(), "python3", args...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil || args[0] == "-c" && string(out) != "1.2.3 w\n" {
			t.Fatalf("python3 %q: %v\n%s", args, err, out)
		}
	}
	source := filepath.Join(root, "manager", "client", "python", "oncegate")
	files, err := os.ReadDir(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.IsDir() { // __pycache__
			continue
		}
		want, err := os.ReadFile(filepath.Join(source, f.Name()))
		got, err2 := os.ReadFile(filepath.Join(dir, "oncegate", f.Name()))
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, %v, the same bytes: %v", f.Name(), err, err2, bytes.Equal(got, want))
		}
	}
}

func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3rc1", "1.2.3-alpha.2": "1.2.3a2", "1.2.3-beta.0": "1.2.3b0", "1.2.3-x": ""} {
		if got, err := pythonVersion(version); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
}
