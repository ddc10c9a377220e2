package main

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// shipBucket is the bucket of the S3 server.
const shipBucket = "bench"

// shipPause is longer than the interval of shipments: what a load leaves is shipped in it, and does not disturb the
// next one, which is another manager's.
const shipPause = 1500 * time.Millisecond

// compareShipping measures what shipping costs a manager: several that differ in nothing else take turns. Their CPU time
// has the shipments during a load, not those after it.
func compareShipping(ctx context.Context, s settings) error {
	if s.only != "" {
		return usageError("-only is not for ship: each row is compared with the first")
	}
	t, err := s.newTable("ship", "durable operations/s", "client", "manager")
	if err != nil {
		return err
	}
	defer t.stop()
	t.share, t.notes = true, "Shipments once a second; a share is one of the rate that is not shipped"
	if err := t.startS3(filepath.Join(t.dir, "cert.pem")); err != nil {
		return err
	}
	t.columns = append(s.spread("appends", "appends"), s.spread("pairs", "pairs")...)
	for i, to := range []struct{ name, url string }{
		{"not shipped", ""}, {"shipped to a directory", "file://" + filepath.Join(t.dir, "shipped")}, {"shipped to S3", "s3://" + shipBucket + "/bench"},
	} {
		flags := []string{"--store", "wal", "--data-dir", filepath.Join(t.dir, fmt.Sprint("wal", i))}
		if to.url != "" {
			flags = append(flags, "--ship-to", to.url)
		}
		p, err := t.startManager(ctx, flags...)
		if err != nil {
			return err
		}
		if err := createLog(ctx, p.URL); err != nil {
			return err
		}
		on := system{keys: managerKeys(ctx, t, p.URL), log: func(ctx context.Context) (*appender, error) { return openWriter(ctx, p.URL) }}
		t.add(&row{name: to.name, own: true, cpu: []cpuTime{ownCPU, cpuOf(p.PID())}, load: func(c column) *load {
			l := s.load(c, on)
			l.prepare = func(ctx context.Context) error {
				select {
				case <-time.After(shipPause):
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			return l
		}})
	}
	return t.measure(ctx)
}

// startS3 starts an S3 server, for the managers that are started afterwards. It keeps objects in memory, and speaks TLS, as
// stores do, with a certificate that it leaves in a file. Its CPU time counts as the client's.
func (t *table) startS3(certFile string) error {
	backend := s3mem.New()
	if err := backend.CreateBucket(shipBucket); err != nil {
		return err
	}
	srv := httptest.NewTLSServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog()), gofakes3.WithoutVersioning()).Server())
	t.onStop(srv.Close)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return err
	}
	for name, value := range map[string]string{"AWS_ENDPOINT_URL": srv.URL, "SSL_CERT_FILE": certFile, "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}
