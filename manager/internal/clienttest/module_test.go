package clienttest

import (
	"archive/zip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// usersWorker is what a user writes.
const usersWorker = `package main

import (
	"context"
	"log"

	"github.com/oncegate/oncegate/manager/client"
)

func main() {
	c, err := client.New(client.Options{URL: "http://127.0.0.1:8090"})
	if err != nil {
		log.Fatal(err)
	}
	w, err := c.NewWorker(client.WorkerOptions{Handlers: map[string]client.Handler{
		"hello": func(_ context.Context, j *client.Job) (any, error) { return "hello", nil },
	}})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(w.Run(context.Background()))
}
`

// usersTest uses the rest of the client's module.
const usersTest = `package main

import (
	"context"
	"testing"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/workertest"
)

func TestHello(t *testing.T) {
	hello := func(context.Context, *client.Job) (any, error) { return "hello", nil }
	workertest.Idempotent(t, hello, 1, func(testing.TB) int { return 0 })
}
`

// TestAWorkerRequiresNextToNothing builds a user's module with the client as published, without the replacements of this
// repository, and reads what the module then requires.
func TestAWorkerRequiresNextToNothing(t *testing.T) {
	proxy, dir := t.TempDir(), t.TempDir()
	publish(t, proxy, "manager/api")
	version := publish(t, proxy, "manager/client")
	for name, text := range map[string]string{
		"go.mod":  "module example.com/worker\n\ngo 1.24.0\n\nrequire github.com/oncegate/oncegate/manager/client " + version + "\n",
		"main.go": usersWorker, "main_test.go": usersTest,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cache, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -modcacherw", "GOWORK=off", "GOSUMDB=off", "GOMODCACHE="+t.TempDir(),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(strings.TrimSpace(string(cache)), "cache", "download"))
	for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", os.DevNull, "."}, {"vet", "./..."}, {"test", "./..."}} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(sums)), "\n")
	allowed := regexp.MustCompile(`^github\.com/(oncegate/oncegate/manager/(api|client)|tidwall/(gjson|match|pretty)) `)
	for _, line := range lines {
		if !allowed.MatchString(line) {
			t.Errorf("a worker requires %s", line)
		}
	}
	if len(lines) != 10 {
		t.Errorf("go.sum has %d lines, want two for each of five modules:\n%s", len(lines), sums)
	}
}

// publish puts a module of this repository into a proxy's folder, at the version that the repository's go.mod requires.
func publish(t *testing.T, proxy, folder string) (version string) {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	path := "github.com/oncegate/oncegate/" + folder
	ours, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(regexp.QuoteMeta(path) + ` (v[0-9.]+)\n`).FindSubmatch(ours)
	if found == nil {
		t.Fatalf("go.mod does not require %s", path)
	}
	version = string(found[1])
	versions := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(versions, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	z := zip.NewWriter(out)
	source := os.DirFS(filepath.Join(root, filepath.FromSlash(folder)))
	err = fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(source, name)
		if err != nil {
			return err
		}
		w, err := z.Create(path + "@" + version + "/" + name)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	if err == nil {
		err = z.Close()
	}
	mod, err2 := fs.ReadFile(source, "go.mod")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	for name, text := range map[string]string{version + ".mod": string(mod), version + ".info": `{"Version":"` + version + `"}`, "list": version + "\n"} {
		if err := os.WriteFile(filepath.Join(versions, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return version
}
