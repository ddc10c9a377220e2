package hostsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Host is a running plugin: the canary has succeeded, and the VMs of the main thread and the workers are configured. It
// is safe for concurrent use.
type Host struct {
	cfg     Config
	epoch   time.Time
	process *Process
	program program
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	detach  func()

	main    *thread
	workers []*thread
	next    atomic.Uint64 // round robin
	idle    idleness
	ids     idSource

	reports reports

	closeOnce sync.Once
	closed    chan struct{}
}

// Start loads the guest and starts the plugin as Envoy does: first a canary VM on the main thread, which is discarded
// once it has accepted the configuration; then the main thread's own VM; then the workers' VMs concurrently. A guest
// that is malformed, imports what Envoy does not offer, traps or refuses its configuration is an error that says so,
// and nothing is left running. ctx bounds only the start.
func Start(ctx context.Context, cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &Host{cfg: cfg, process: cfg.Process, epoch: cfg.Clock.Now(), closed: make(chan struct{})}
	h.ids.seed(cfg.Seed)
	h.program, err = cfg.Guest.load(ctx, guestLimits{memory: cfg.MemoryLimit, callback: cfg.CallbackTimeout, seed: cfg.Seed})
	if err != nil {
		return nil, err
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.process.acquire(cfg.VMID)
	h.detach = func() {}
	if vc, ok := cfg.Clock.(*VirtualClock); ok {
		h.detach = vc.attach(attached{settle: func() { _ = h.Settle(h.ctx) }, posted: h.idle.posted.Load})
	}
	h.main = newThread(h, "main", -1)
	for i := range cfg.Workers {
		h.workers = append(h.workers, newThread(h, fmt.Sprintf("worker-%d", i), i))
	}
	for _, t := range h.threads() {
		go t.loop.run()
	}
	if err := h.startVMs(ctx); err != nil {
		_ = h.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return h, nil
}

func (h *Host) startVMs(ctx context.Context) error {
	var err error
	h.main.loop.call(func() {
		canary := newVM(h.main, "canary", true)
		if err = canary.start(ctx); err == nil {
			err = h.main.startVM(ctx)
		}
		canary.discard()
	})
	if err != nil {
		return err
	}
	errs := make([]error, len(h.workers))
	var wg sync.WaitGroup
	for i, t := range h.workers {
		wg.Go(func() { t.loop.call(func() { errs[i] = t.startVM(ctx) }) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return ctx.Err()
}

func (h *Host) threads() []*thread { return append([]*thread{h.main}, h.workers...) }

// Close resets the open streams, runs the plugin's done and delete callbacks and stops all loops. A plugin that answers
// proxy_on_done with false has until ctx ends to call proxy_done. Close waits for all of that, and may be called more
// than once. If ctx ends first it returns ctx's error. The rest then ends without the caller, as soon as no callback
// of the guest runs any more.
func (h *Host) Close(ctx context.Context) error {
	select {
	case <-h.closed:
		return nil
	default:
	}
	h.closeOnce.Do(func() {
		for _, t := range h.threads() {
			t.closing.Store(true)
			t.loop.post(event{kind: evFunc, f: func() {
				t.closeStreams()
				if t.vm != nil {
					t.vm.shutdown()
				}
			}})
		}
		go h.finish(ctx)
	})
	select {
	case <-h.closed:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// finish ends a host whose loops know that it closes. It waits for them, also for one with a guest that loops.
func (h *Host) finish(ctx context.Context) {
	h.awaitDone(ctx)
	for _, t := range h.threads() {
		t.loop.call(func() {
			t.closeStreams()
			t.idleTimer.disarm()
			if t.vm != nil {
				t.vm.discard()
			}
		})
		t.loop.stop()
		<-t.loop.done
	}
	h.cancel()
	h.detach()
	h.process.release(h.cfg.VMID)
	h.program.close()
	close(h.closed)
}

// awaitDone waits until no VM's plugin still has to call proxy_done.
func (h *Host) awaitDone(ctx context.Context) {
	for _, t := range h.threads() {
		done := make(chan struct{})
		t.loop.call(func() {
			if t.vm == nil || t.vm.closed || t.vm.failed {
				close(done)
				return
			}
			t.vm.onClosed = done
		})
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// Settle waits until no event is waiting or being handled on any loop, so everything that was fed has had its effect.
// It does not wait for timers and answers of real clusters. It returns ctx's error.
func (h *Host) Settle(ctx context.Context) error {
	select {
	case <-h.idle.wait():
		return nil
	case <-h.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Host) pick(worker int) *thread {
	if worker == AnyWorker {
		worker = int((h.next.Add(1) - 1) % uint64(len(h.workers)))
	}
	return h.workers[worker]
}

// Streams is the number of streams that are not over, on all workers.
func (h *Host) Streams() int {
	n := 0
	for _, t := range h.workers {
		n += int(t.streams.Load())
	}
	return n
}

// Process is the state the host shares with others of its process.
func (h *Host) Process() *Process { return h.process }

// WritePrometheus writes the filter's metrics, see Process.WritePrometheus.
func (h *Host) WritePrometheus(w io.Writer) error { return h.process.WritePrometheus(w) }

// SharedData returns a copy of the shared data of the plugin's vm_id, by key.
func (h *Host) SharedData() []SharedDataEntry { return h.process.SharedData(h.cfg.VMID) }

// SharedDataSize returns the number of keys and the bytes of keys and values of the
// plugin's vm_id, without copying them.
func (h *Host) SharedDataSize() (keys, bytes int) { return h.process.SharedDataSize(h.cfg.VMID) }

// Trap kills the VM of a worker (or, with AnyWorker, of the main thread) as if the guest had trapped now, to test what
// follows. It waits until that has happened.
func (h *Host) Trap(worker int, cause error) {
	t := h.main
	if worker != AnyWorker {
		t = h.workers[worker]
	}
	t.loop.call(func() {
		if !t.vm.failed {
			t.vm.trap("injected", cause)
		}
	})
}

// GuestMemory is the size in bytes of the linear memory of a worker's VM; 0 for a
// native guest or a dead VM.
func (h *Host) GuestMemory(worker int) uint64 {
	var n uint64
	t := h.workers[worker]
	t.loop.call(func() {
		if t.vm.failed || t.vm.closed {
			return
		}
		n = t.vm.guest.memorySize()
	})
	return n
}
