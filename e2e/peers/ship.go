package main

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/oncegate/oncegate/manager/client"
)

// shipBucket is the bucket of the S3 server.
const shipBucket = "bench"

// notShipped is the manager that the others are compared with.
const notShipped = "not shipped"

// shipPause is longer than the interval of shipments: what a round leaves is shipped in it, and does
// not disturb the next round, which is another manager's.
const shipPause = 1500 * time.Millisecond

// compareShipping measures what shipping costs a manager: several that differ in nothing else take turns. They have a
// core of their own, so the store and the clients take nothing from them but the disk's time. The CPU time is that of
// the manager alone, with the shipments after the round.
func compareShipping(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp(s.out, "ship")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l := logRounds{settings: s, dir: dir}
	defer l.stop()
	if err := l.prepareShipping(ctx); err != nil {
		return err
	}
	slices.SortStableFunc(l.steps, func(a, b *logStep) int { // what is compared follows on each other
		return cmp.Or(cmp.Compare(a.group, b.group), a.callers-b.callers, a.batch-b.batch)
	})
	for range s.rounds {
		for _, st := range l.steps {
			before := cpuOf(st.pid)
			start := time.Now()
			rate, err := st.run(ctx, s.duration)
			if err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
			entries := rate * float64(st.batch) * time.Since(start).Seconds()
			time.Sleep(shipPause)
			st.rates = append(st.rates, rate*float64(st.batch))
			st.cpus = append(st.cpus, time.Duration(float64(cpuOf(st.pid)-before)/entries))
		}
	}
	var b strings.Builder
	b.WriteString("| durable operations/s | callers | batches of | best round | of not shipped | all rounds | of not shipped, ± standard error | CPU us of the manager, median | of not shipped |\n")
	b.WriteString("|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	var base *logStep
	for _, st := range l.steps {
		if st.name == notShipped {
			base = st
		}
		best, cpu := slices.Max(st.rates), median(st.cpus)
		fmt.Fprintf(&b, "| %s, %s | %d | %d | %.0f | %.3f | %.0f | %s | %.1f | %.3f |\n", st.group, st.name, st.callers, st.batch,
			best, best/slices.Max(base.rates), mean(st.rates), ratioOf(st.rates, base.rates),
			cpu.Seconds()*1e6, float64(cpu)/float64(median(base.cpus)))
	}
	text := b.String() + fmt.Sprintf("\n%d rounds of %s each, shipments once a second.\n", s.rounds, s.duration)
	fmt.Println(text)
	return os.WriteFile(filepath.Join(s.out, "ship.md"), []byte(text), 0o644)
}

func mean(of []float64) (sum float64) {
	for _, v := range of {
		sum += v / float64(len(of))
	}
	return sum
}

// ratioOf is the ratio of the means of two systems that took turns, with its standard error: by how much their
// rounds differ from that ratio.
func ratioOf(rates, base []float64) string {
	ratio := mean(rates) / mean(base)
	var squares float64
	for i, r := range rates {
		squares += (r - ratio*base[i]) * (r - ratio*base[i])
	}
	n := float64(len(rates))
	return fmt.Sprintf("%.3f ± %.3f", ratio, math.Sqrt(squares/n/(n-1))/mean(base))
}

// prepareShipping starts a manager that does not ship, one that ships to a directory, and one that
// ships to an S3 server.
func (l *logRounds) prepareShipping(ctx context.Context) error {
	apart, err := divideCores()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cert, err := filepath.Abs(filepath.Join(l.dir, "cert.pem"))
	if err != nil {
		return err
	}
	store, err := startLogged("", self, "s3", cert)
	if err != nil {
		return err
	}
	l.stops = append(l.stops, store.stop)
	for name, value := range map[string]string{"AWS_ENDPOINT_URL": "https://" + store.addr, "SSL_CERT_FILE": cert, "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"} {
		if err := os.Setenv(name, value); err != nil { // the manager inherits it
			return err
		}
	}
	shipped, err := os.MkdirTemp(cmp.Or(l.shipDir, l.dir), "shipped")
	if err != nil {
		return err
	}
	l.stops = append(l.stops, func() { _ = os.RemoveAll(shipped) })
	if shipped, err = filepath.Abs(shipped); err != nil {
		return err
	}
	for _, to := range []struct{ name, url string }{
		{notShipped, ""}, {"shipped to a directory", "file://" + shipped}, {"shipped to S3", "s3://" + shipBucket + "/bench"},
	} {
		flags := []string{"--store", "wal"}
		if to.url != "" {
			flags = append(flags, "--ship-to", to.url)
		}
		p, err := apart.start(func() (*process, error) {
			return startManager(l.dir, l.manager, "127.0.0.1:0", flags...)
		})
		if err != nil {
			return err
		}
		l.stops = append(l.stops, p.stop)
		c, err := client.New(client.Options{URL: "http://" + p.addr})
		if err != nil {
			return err
		}
		log, err := c.OpenLog(logName)
		if err != nil {
			return err
		}
		if _, err := log.Create(ctx, client.LogConfig{MaxKeys: 16 << 20, MaxBytes: 1 << 32}); err != nil {
			return err
		}
		l.add(to.name, "reserve and commit", p.cmd.Process.Pid, func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
			rate, _, err := leanClients(ctx, d, callers, p.addr, newLedgerCalls(batch))
			return rate, err
		})
		l.add(to.name, "append to a log", p.cmd.Process.Pid, func(ctx context.Context, d time.Duration, callers, batch int) (float64, error) {
			rate, _, err := leanClients(ctx, d, callers, p.addr, newLogCalls(batch))
			return rate, err
		})
	}
	return nil
}

// serveS3 is the child process with an S3 server that keeps objects in memory. It speaks TLS, as stores do, and
// leaves its certificate in a file.
func serveS3(ctx context.Context, certFile string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	backend := s3mem.New()
	if err := backend.CreateBucket(shipBucket); err != nil {
		return err
	}
	srv := httptest.NewUnstartedServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithoutVersioning()).Server())
	srv.StartTLS()
	defer srv.Close()
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return err
	}
	line, err := json.Marshal(map[string]string{"msg": "listening", "listener": "api", "addr": srv.Listener.Addr().String()})
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	<-ctx.Done()
	return nil
}
