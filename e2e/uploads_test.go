package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/envoy/envoybin"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// uploadClients are programs that upload a file as a form. Each makes a new boundary for each try.
var uploadClients = map[string]func(url, key, file string) []string{
	"curl": func(url, key, file string) []string {
		return []string{"curl", "-sS", "-o", os.DevNull, "-w", "%{http_code} %header{idempotency-status}", "-H", "Host: " + host,
			"-H", "Idempotency-Key: " + key, "-F", "amount=100", "-F", "document=@" + file + ";filename=document.bin;type=application/octet-stream", url}
	},
	"requests": func(url, key, file string) []string {
		return []string{"python3", filepath.Join("testdata", "uploads", "upload.py"), "requests", url, host, key, file}
	},
	"httpx": func(url, key, file string) []string {
		return []string{"python3", filepath.Join("testdata", "uploads", "upload.py"), "httpx", url, host, key, file}
	},
	"node": func(url, key, file string) []string {
		return []string{"node", filepath.Join("testdata", "uploads", "upload.js"), url, host, key, file}
	},
}

// uploads is an upstream that reads forms. It holds each answer until hold is closed.
type uploads struct {
	mu   sync.Mutex
	runs map[string]int
	read chan string // the key of a request that was read and is not answered yet
	hold chan struct{}
}

func (u *uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form, err := r.MultipartReader()
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnsupportedMediaType)
		return
	}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return // the client left
		}
		if _, err := io.Copy(io.Discard, part); err != nil {
			return
		}
	}
	key := r.Header.Get("Idempotency-Key")
	u.mu.Lock()
	u.runs[key]++
	u.mu.Unlock()
	u.read <- key
	<-u.hold
	w.WriteHeader(http.StatusCreated)
}

// An upload whose answer is lost runs once: the retry of a real client matches though its boundary is another one. Another
// file with the key is refused if it differs within max_request_body_bytes, except in headers mode, which sees no bodies.
func TestRetriedUploadRunsOnce(t *testing.T) {
	library := filepath.Join("..", "build", "python")
	clients, sizes := []string{"curl", "requests"}, []int{1000, 700_000}
	if deep.On() {
		clients, sizes = []string{"curl", "requests", "httpx", "node"}, []int{1000, 60_000, 700_000, 20 << 20}
	}
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		u := &uploads{runs: map[string]int{}, read: make(chan string, 1)}
		server := httptest.NewServer(u)
		t.Cleanup(server.Close)
		s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: server.Listener.Addr().String()}
		if mode == "body" {
			s.plugin = inner
		}
		s.stopAtEnd(t)
		s.startManager(t)
		url := s.startProxy(t).url("/uploads")
		run := func(ctx context.Context, client, key, file string) (out string, err error) {
			args := uploadClients[client](url, key, file)
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+library, "PYTHONDONTWRITEBYTECODE=1", "NO_PROXY=*")
			var log bytes.Buffer
			cmd.Stderr = &log
			b, err := cmd.Output()
			return strings.TrimSpace(string(b)) + log.String(), err
		}
		for _, client := range clients {
			if _, err := exec.LookPath(uploadClients[client]("", "", "")[0]); err != nil && !envoybin.Required() {
				t.Logf("%s did not run: %v", client, err)
				continue
			}
			for _, size := range sizes {
				key := newKey()
				first, other := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "other")
				content := bodyBytes(size)
				writeFile(t, first, content)
				content[size/3] ^= 1
				writeFile(t, other, content)

				ctx, leave := context.WithCancel(t.Context())
				u.hold = make(chan struct{})
				left := make(chan struct{})
				go func() {
					defer close(left)
					_, _ = run(ctx, client, key, first)
				}()
				select {
				case <-u.read:
				case <-time.After(patience):
					t.Fatalf("%s, %d bytes: the upload did not arrive", client, size)
				}
				if mode == "body" && size <= 512<<10 {
					leave() // the client is killed before its answer, and the gate's own call continues
					<-left
				}
				close(u.hold)
				<-left
				leave()

				if out, err := run(t.Context(), client, key, first); err != nil || out != "201 replayed" {
					t.Errorf("%s, %d bytes: the retry got %q, %v", client, size, out, err)
				}
				want := "422"
				if mode == "headers" || size/3 > 512<<10 {
					want = "201" // the gate has not seen the byte that differs
				}
				if out, err := run(t.Context(), client, key, other); err != nil || !strings.HasPrefix(out, want) {
					t.Errorf("%s, %d bytes: another file got %q, %v, want %s", client, size, out, err, want)
				}
				u.mu.Lock()
				if n := u.runs[key]; n != 1 {
					t.Errorf("%s, %d bytes: %d runs", client, size, n)
				}
				u.mu.Unlock()
			}
		}
	})
}

func writeFile(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
