package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

const crowdBodySize = 400_000

// crowdBodies is how many there are at once: more than a VM has room for.
var crowdBodies = min(crowd/3, 500)

// halting is a body that stops before its last byte until it is released.
type halting struct {
	left []byte
	goOn <-chan struct{}
}

// Read implements io.Reader.
func (h *halting) Read(b []byte) (int, error) {
	switch n := len(h.left); n {
	case 0:
		return 0, io.EOF
	case 1:
		<-h.goOn
	default:
		b = b[:min(len(b), n-1)]
	}
	n := copy(b, h.left)
	h.left = h.left[n:]
	return n, nil
}

// haltingUpstream answers with what the request had, or with a body that halts where the query asks for one.
func haltingUpstream(goOn <-chan struct{}) http.HandlerFunc {
	body := bodyBytes(crowdBodySize)
	return func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		q := r.URL.Query()
		if !q.Has("answer") {
			fmt.Fprint(w, digest(got))
			return
		}
		if q.Has("sized") {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		flush := http.NewResponseController(w).Flush
		for h := (&halting{body, goOn}); len(h.left) > 0; {
			if _, err := io.CopyN(w, h, int64(max(1, len(h.left)-1))); err != nil {
				return
			}
			_ = flush() // a client that left shows in what follows
		}
	}
}

// vmMemory is an upper bound of a VM's memory in bytes: it keeps up to 8 MiB of requests and
// 16 MiB of answers, and its heap grows by doubling.
const vmMemory = 192 << 20

// Many bodies that lack their last byte, at the same time, half of them of known length. Envoy holds each once. What the
// gate holds beside is bounded, and all arrive. Of answers without a length, it records what it had room for.
func TestCrowdOfBodies(t *testing.T) {
	deep.Only(t)
	sideBySide(t, modes, func(t *testing.T, target envoyTarget, mode string) { // they are a crowd
		for _, answers := range []bool{false, true} {
			t.Run(map[bool]string{false: "requests", true: "answers"}[answers], func(t *testing.T) {
				crowdOfBodies(t, target, mode, answers)
			})
		}
	})
}

func crowdOfBodies(t *testing.T, target envoyTarget, mode string, answers bool) {
	goOn, ended := make(chan struct{}, crowdBodies), make(chan struct{}, crowdBodies)
	letGo := sync.OnceFunc(func() { close(goOn) })
	upstream := httptest.NewServer(haltingUpstream(goOn))
	t.Cleanup(upstream.Close)
	s := &stack{dir: t.TempDir(), target: target, mode: mode, paymentsAddr: upstream.Listener.Addr().String(),
		plugin: map[string]any{"manager": map[string]any{"timeout_ms": 60_000}}}
	s.edit = func(hcm *hcmv3.HttpConnectionManager) error {
		// A busy machine takes its time until all halt.
		hcm.RequestTimeout, hcm.StreamIdleTimeout = durationpb.New(patience), durationpb.New(patience)
		routes := hcm.GetRouteConfig().GetVirtualHosts()[0].GetRoutes()
		routes[len(routes)-1].GetRoute().Timeout = durationpb.New(patience)
		return nil
	}
	s.stopAtEnd(t)
	s.startManager(t)
	p := s.startProxy(t)
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: patience}

	want := digest(bodyBytes(crowdBodySize))
	sendOne := func(key string, sized bool) (status int, err error) {
		path, body, length := "/bodies", io.Reader(http.NoBody), int64(0)
		if answers {
			if path += "?answer"; sized {
				path += "&sized"
			}
		} else if body, length = (&halting{bodyBytes(crowdBodySize), goOn}), -1; sized {
			length = crowdBodySize
		}
		req, err := http.NewRequestWithContext(t.Context(), "POST", p.url(path), body)
		if err != nil {
			return 0, err
		}
		req.Host, req.ContentLength = host, length
		req.Header.Set("Idempotency-Key", key)
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			return resp.StatusCode, err
		}
		if answers && resp.StatusCode == 200 {
			got = []byte(digest(got))
		}
		if resp.StatusCode == 200 && string(got) != want {
			return resp.StatusCode, fmt.Errorf("%.200q, want %s", got, want)
		}
		return resp.StatusCode, nil
	}

	before := p.resident(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer letGo()
	for i := range crowdBodies {
		wg.Go(func() {
			defer func() { ended <- struct{}{} }()
			if status, err := sendOne(fmt.Sprint("crowd-", i), i%2 == 0); err != nil || status != 200 {
				t.Errorf("body %d: status %d, %v", i, status, err)
			}
		})
	}
	statistic := map[bool]string{false: "http.ingress.downstream_cx_rx_bytes_total", true: "cluster.upstream.upstream_cx_rx_bytes_total"}[answers]
	most := 0
	eventually(t, "the bodies do not arrive", func() error {
		most = max(most, p.resident(t))
		text, err := fetch(p.admin + "/stats?filter=^" + statistic + "$")
		if err != nil {
			return err
		}
		_, number, _ := strings.Cut(string(bytes.TrimSpace(text)), ": ")
		if n, err := strconv.Atoi(number); err != nil || n < crowdBodies*(crowdBodySize-1) {
			return fmt.Errorf("%s is %s", statistic, number)
		}
		return nil
	})
	for range crowdBodies { // one after the other
		goOn <- struct{}{}
		<-ended
	}
	wg.Wait()
	letGo()
	most = max(most, p.resident(t))
	bodies := crowdBodies * crowdBodySize
	t.Logf("%d MiB, %d MiB before, with %d MiB of bodies", most>>20, before>>20, bodies>>20)
	if most-before > bodies+2*vmMemory {
		t.Error("Envoy took too much memory")
	}

	outcomes := map[string]int{}
	for i := range crowdBodies {
		sized := i%2 == 0
		status, err := sendOne(fmt.Sprint("crowd-", i), sized)
		if err != nil || status != 200 && (status != 410 || !answers) {
			t.Errorf("retry %d: status %d, %v", i, status, err)
		}
		outcomes[fmt.Sprintf("%d, sized %v", status, sized)]++
	}
	t.Log("retries:", outcomes)
}
