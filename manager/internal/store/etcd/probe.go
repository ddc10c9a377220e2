package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store/etcd/dsn"
)

const (
	// probeWithin bounds a probe of one member.
	probeWithin = 2 * time.Second
	// alertWithin is how long a member that refuses the client's certificate may take to say so.
	alertWithin = 500 * time.Millisecond
)

// probe says why no connection to a member can be made; nil if one can, or nothing is known. The client library hides
// that after a deadline.
func probe(ctx context.Context, cfg dsn.Config, t *tls.Config) error {
	var first error
	for _, e := range cfg.Endpoints {
		u, err := url.Parse(e)
		if err != nil {
			continue
		}
		if err = probeMember(ctx, u, t); err == nil {
			return nil
		}
		first = cmp.Or(first, err)
	}
	return first
}

func probeMember(ctx context.Context, u *url.URL, t *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil || t == nil {
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	defer c.Close()
	own := t.Clone()
	own.ServerName, own.NextProtos = u.Hostname(), []string{"h2"}
	s := tls.Client(c, own)
	if err := s.HandshakeContext(ctx); err != nil {
		return err
	}
	// A refusal of the client's certificate comes after the handshake.
	_ = s.SetReadDeadline(time.Now().Add(alertWithin))
	if _, err := s.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}
