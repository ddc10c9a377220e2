package settings

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncegate/oncegate/manager/internal/store/etcd/dsn"
	redisdsn "github.com/oncegate/oncegate/manager/internal/store/redis/dsn"
)

// check looks at what one setting alone cannot tell.
func (s *Settings) check() error {
	for _, check := range []func() error{s.checkEngine, s.checkPlaces, s.checkShards, s.checkPeers} {
		if err := check(); err != nil {
			return err
		}
	}
	for _, l := range []struct{ flag, value string }{{"listen", s.Listen}, {"admin", s.Admin}} {
		if l.flag == "admin" && l.value == "" {
			continue
		}
		if wrong := checkAddress(l.value); wrong != "" {
			return Usagef("--%s %q: %s", l.flag, l.value, wrong)
		}
	}
	for _, p := range []struct{ of, cert, key string }{{"tls", s.TLSCert, s.TLSKey}, {"admin-tls", s.AdminTLSCert, s.AdminTLSKey}, {"peer", s.Peers.Cert, s.Peers.Key}} {
		if (p.cert == "") != (p.key == "") {
			return Usagef("--%s-cert and --%s-key: must be given together", p.of, p.of)
		}
	}
	if s.AdminTLSCert != "" && s.Admin == "" {
		return Usagef("--admin-tls-cert %q: needs --admin", s.AdminTLSCert)
	}
	if s.ClientCA != "" && s.TLSCert == "" {
		return Usagef("--client-ca %q: needs --tls-cert and --tls-key", s.ClientCA)
	}
	if s.ClientRoles != "" && s.ClientCA == "" {
		return Usagef("--client-roles-file %q: needs --client-ca", s.ClientRoles)
	}
	if s.Jobs.BackoffMax < s.Jobs.BackoffBase {
		return Usagef("--job-backoff-max-seconds %v: must be at least --job-backoff-seconds, %v", s.Jobs.BackoffMax.Seconds(), s.Jobs.BackoffBase.Seconds())
	}
	s.Ledger.ScopeShare = cmp.Or(s.Ledger.ScopeShare, -1)
	s.Jobs.OwnerShare = cmp.Or(s.Jobs.OwnerShare, -1)
	s.Ledger.MaxWait = s.pendingWait
	if !s.waitForPending || s.pendingWait == 0 {
		s.Ledger.MaxWait = -1
	}
	// The largest request is a commit in JSON: its body in base64 and room for
	// headers, which JSON may escape; or it is a finish of many jobs.
	s.Server.MaxBodyBytes = max(s.Ledger.MaxResultBytes/3*4+512<<10, maxJobBody, maxLogBody)
	if least := 2 * int64(s.Server.MaxBodyBytes); s.Server.MaxBodyMemory < least {
		return Usagef("--max-body-memory-bytes %d: must be at least %d, twice the largest request, which --max-result-bytes %d makes possible", s.Server.MaxBodyMemory, least, s.Ledger.MaxResultBytes)
	}
	return nil
}

// named is how a message calls a setting: what the user wrote, flag or variable.
func (s *Settings) named(flag string) string {
	if env := s.fromEnv[flag]; env != "" {
		return env
	}
	return "--" + flag
}

// checkPlaces looks at names of files and directories that are made or written
// later, when the manager is about to serve.
func (s *Settings) checkPlaces() error {
	if s.DataDir != "" {
		if info, err := os.Stat(s.DataDir); err == nil && !info.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Usagef("--data-dir %q: must be a directory, or the name of one to make%s", s.DataDir, because(err))
		}
	}
	if s.AddrFile != "" {
		if info, err := os.Stat(filepath.Dir(s.AddrFile)); err != nil || !info.IsDir() {
			return Usagef("--addr-file %q: must be the name of a file in a directory that exists%s", s.AddrFile, because(err))
		}
		if info, err := os.Stat(s.AddrFile); err == nil && info.IsDir() {
			return Usagef("--addr-file %q: must be the name of a file, this is a directory", s.AddrFile)
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

func (s *Settings) checkRedisDSN() error {
	if err := redisdsn.Check(s.StoreDSN); err != nil {
		return Usagef("%s: must be a URL like redis://user:password@host:6379/0, or rediss:// for TLS; %v", s.named("store-dsn"), err)
	}
	return nil
}

func (s *Settings) checkPostgresDSN() error {
	cfg, err := pgxpool.ParseConfig(s.StoreDSN)
	if err != nil { // pgx leaves the password out
		return Usagef("%s: must be a URL like postgres://user:password@host:5432/database, or key=value pairs; %v", s.named("store-dsn"), err)
	}
	switch level := cfg.ConnConfig.RuntimeParams["synchronous_commit"]; level {
	case "", "on", "remote_apply":
		return nil
	default:
		return Usagef("%s: synchronous_commit %q: must be on or remote_apply; any other may lose what was acknowledged", s.named("store-dsn"), level)
	}
}

func (s *Settings) checkEtcdDSN() error {
	c, err := dsn.Parse(s.StoreDSN)
	if err == nil {
		_, err = c.TLS()
	}
	if err != nil { // which leaves the password out
		return Usagef("%s: must be addresses like http://a:2379,http://b:2379,http://c:2379?prefix=/oncegate, or https:// for TLS; %v", s.named("store-dsn"), err)
	}
	return nil
}
