package main

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// check looks at what one setting alone cannot tell.
func (s *settings) check() error {
	if err := checkEngine(s); err != nil {
		return err
	}
	if err := s.checkPlaces(); err != nil {
		return err
	}
	if err := s.checkShards(); err != nil {
		return err
	}
	for _, l := range []struct{ flag, value string }{{"listen", s.listen}, {"admin", s.admin}} {
		if l.flag == "admin" && l.value == "" {
			continue
		}
		if wrong := checkAddress(l.value); wrong != "" {
			return usagef("--%s %q: %s", l.flag, l.value, wrong)
		}
	}
	if (s.tlsCert == "") != (s.tlsKey == "") {
		return usagef("--tls-cert and --tls-key: must be given together")
	}
	if s.clientCA != "" && s.tlsCert == "" {
		return usagef("--client-ca %q: needs --tls-cert and --tls-key", s.clientCA)
	}
	if s.jobs.BackoffMax < s.jobs.BackoffBase {
		return usagef("--job-backoff-max-seconds %v: must be at least --job-backoff-seconds, %v", s.jobs.BackoffMax.Seconds(), s.jobs.BackoffBase.Seconds())
	}
	if s.whenFull == ledger.Evict.String() {
		s.ledger.WhenFull = ledger.Evict
	}
	if s.ledger.ScopeShare == 0 {
		s.ledger.ScopeShare = -1
	}
	s.ledger.MaxWait = s.pendingWait
	if !s.waitForPending || s.pendingWait == 0 {
		s.ledger.MaxWait = -1
	}
	// The largest request is a commit in JSON: its body in base64 and room for
	// headers, which JSON may escape; or it is a finish of many jobs.
	s.server.MaxBodyBytes = max(s.ledger.MaxResultBytes/3*4+512<<10, maxJobBody)
	return nil
}

// named is how a message calls a setting: what the user wrote, flag or variable.
func (s *settings) named(flag string) string {
	if env := s.fromEnv[flag]; env != "" {
		return env
	}
	return "--" + flag
}

// checkPlaces looks at names of files and directories that are made or written
// later, when the manager is about to serve.
func (s *settings) checkPlaces() error {
	if s.dataDir != "" {
		if info, err := os.Stat(s.dataDir); err == nil && !info.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return usagef("--data-dir %q: must be a directory, or the name of one to make%s", s.dataDir, because(err))
		}
	}
	if s.addrFile != "" {
		if info, err := os.Stat(filepath.Dir(s.addrFile)); err != nil || !info.IsDir() {
			return usagef("--addr-file %q: must be the name of a file in a directory that exists%s", s.addrFile, because(err))
		}
		if info, err := os.Stat(s.addrFile); err == nil && info.IsDir() {
			return usagef("--addr-file %q: must be the name of a file, this is a directory", s.addrFile)
		}
	}
	return nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return "; " + err.Error()
}

// The DSN is never part of a message: it may hold a password.

func checkRedisDSN(s *settings) error {
	_, err := goredis.ParseURL(s.storeDSN)
	var malformed *url.Error // quotes the URL, or what it takes for the port
	switch {
	case err == nil:
		return nil
	case errors.As(err, &malformed):
		err = errors.New("it is none")
	}
	return usagef("%s: must be a URL like redis://user:password@host:6379/0, or rediss:// for TLS; %v", s.named("store-dsn"), err)
}

func checkPostgresDSN(s *settings) error {
	if _, err := pgxpool.ParseConfig(s.storeDSN); err != nil { // pgx leaves the password out
		return usagef("%s: must be a URL like postgres://user:password@host:5432/database, or key=value pairs; %v", s.named("store-dsn"), err)
	}
	return nil
}

// credentials reads what the API's listener shows and asks for. Auth is nil
// when it asks for nothing, the certificate and its configuration without TLS.
func (s *settings) credentials() (auth *httpd.Auth, cert *httpd.Certificate, cfg *tls.Config, err error) {
	if s.tlsCert != "" {
		if cert, err = httpd.NewCertificate(s.tlsCert, s.tlsKey); err != nil {
			return nil, nil, nil, usagef("--tls-cert %q, --tls-key %q: must be a certificate and its key in PEM form; %v", s.tlsCert, s.tlsKey, err)
		}
		if cfg, err = httpd.TLSConfig(cert, s.clientCA); err != nil {
			return nil, nil, nil, usagef("--client-ca %q: must be a file of certificates in PEM form; %v", s.clientCA, err)
		}
	}
	if auth, err = httpd.NewAuth(s.tokenFile, s.clientCA != ""); err != nil {
		return nil, nil, nil, usagef("--auth-token-file %q: must be a file of bearer tokens, one per line; %v", s.tokenFile, err)
	}
	return auth, cert, cfg, nil
}
