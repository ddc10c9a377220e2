package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/examples/internal/stack"
)

// measurement is what a run on this machine took. All is for one new key, unless it says otherwise.
type measurement struct {
	keys, retries int
	took          time.Duration // of all keys and retries
	// With the retries' part; the network only if the proxy is Envoy, and no state.
	cost
	// Resident memory of the manager at the end, of the whole process.
	managerResident float64
}

// callers is how many requests of a measured run are under way at the same time.
const callers = 32

// loadLimit bounds a measured run. A busy machine does some hundred requests per second.
const loadLimit = 10 * time.Minute

// measure sends keys new keys, and then a part of them again, through the gate to the payments example, and returns
// what that took. dir gets the data and the logs of the processes.
func measure(ctx context.Context, binDir, dir string, proxy stack.Proxy, l Load, keys int) (m measurement, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	st, err := stack.Start(ctx, stack.Config{
		BinDir: binDir, Dir: dir, Proxy: proxy, Workers: 1,
		Plugin: map[string]any{"max_entries": 2 * (keys + callers), "max_bytes": 256 << 20, "client_abort": l.ClientAbort},
	})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, st.Stop()) }()

	// Connections, buffers and the first log segment are not what one more key takes.
	if err := send(ctx, st, l.AnswerBytes, 0, callers); err != nil {
		return m, err
	}
	before, err := look(ctx, st, dir)
	if err != nil {
		return m, err
	}
	begin := time.Now()
	retries := int(float64(keys) * l.Retries)
	if err := send(ctx, st, l.AnswerBytes, callers, callers+keys); err != nil {
		return m, err
	}
	for left := retries; left > 0; left -= keys {
		if err := send(ctx, st, l.AnswerBytes, callers, callers+min(left, keys)); err != nil {
			return m, err
		}
	}
	m.took = time.Since(begin)
	after, err := look(ctx, st, dir)
	if err != nil {
		return m, err
	}
	if ran := int(after.executions - before.executions); ran != keys {
		return m, fmt.Errorf("%d new keys and %d retries ran %d times", keys, retries, ran)
	}
	m.keys, m.retries, m.cost = keys, retries, after.cost.since(before.cost, keys)
	m.managerResident = after.managerResident
	return m, nil
}

// send sends the keys of the numbers from first to the one before end.
func send(ctx context.Context, st *stack.Stack, answerBytes, first, end int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	next.Store(int64(first))
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= end || ctx.Err() != nil {
					return
				}
				if err := post(ctx, client, st.ProxyURL()+"/payments", n, answerBytes); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

func post(ctx context.Context, client *http.Client, url string, n, answerBytes int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"amount": 100}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", fmt.Sprintf("capacity-%024d", n))
	req.Header.Set("X-Demo-Body-Bytes", strconv.Itoa(answerBytes))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("a payment got %s: %.200s", resp.Status, body)
	}
	return err
}

// sight is the state of the processes at one instant, with the cost of all keys so far.
type sight struct {
	cost
	managerResident float64
	executions      int64
}

// since is what each of some keys cost.
func (c cost) since(before cost, keys int) cost {
	each := func(before, after float64) float64 { return (after - before) / float64(keys) }
	return cost{
		proxyMicros: each(before.proxyMicros, c.proxyMicros), managerMicros: each(before.managerMicros, c.managerMicros),
		logBytes: each(before.logBytes, c.logBytes), windowBytes: each(before.windowBytes, c.windowBytes),
		networkBytes: each(before.networkBytes, c.networkBytes),
	}
}

func look(ctx context.Context, st *stack.Stack, dir string) (s sight, err error) {
	pids := st.PIDs()
	if s.proxyMicros, err = cpuMicros(pids["proxy"]); err != nil {
		return s, err
	}
	if s.managerMicros, err = cpuMicros(pids["manager"]); err != nil {
		return s, err
	}
	metrics, err := numbers(ctx, st.ManagerAdminURL()+"/metrics", " ")
	if err != nil {
		return s, err
	}
	s.windowBytes, s.logBytes = metrics["oncegate_ledger_bytes"], metrics["oncegate_wal_batch_bytes_sum"]
	s.managerResident = metrics["process_resident_memory_bytes"]
	if _, ok := metrics["oncegate_wal_batch_bytes_sum"]; !ok {
		return s, errors.New("the manager's metrics lack oncegate_wal_batch_bytes_sum")
	}
	stats, err := numbers(ctx, st.ProxyAdminURL()+"/stats?filter=cluster.oncegate_manager.upstream_cx", ": ")
	if err != nil {
		return s, err
	}
	s.networkBytes = stats["cluster.oncegate_manager.upstream_cx_tx_bytes_total"] + stats["cluster.oncegate_manager.upstream_cx_rx_bytes_total"]
	body, err := get(ctx, st.PaymentsURL()+"/executions?key=none")
	if err != nil {
		return s, err
	}
	var executions struct{ Total int64 }
	err = json.Unmarshal(body, &executions)
	s.executions = executions.Total
	return s, err
}
