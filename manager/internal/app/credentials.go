package app

import (
	"context"
	"crypto/tls"
	"os"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// adminTLS reads what the listener for operators shows; both are nil without TLS.
func adminTLS(s *settings.Settings) (*httpd.Certificate, *tls.Config, error) {
	if s.AdminTLSCert == "" {
		return nil, nil, nil
	}
	cert, err := httpd.NewCertificate(s.AdminTLSCert, s.AdminTLSKey)
	if err != nil {
		return nil, nil, settings.Usagef("--admin-tls-cert %q, --admin-tls-key %q: must be a certificate and its key in PEM form; %v", s.AdminTLSCert, s.AdminTLSKey, err)
	}
	cfg, err := httpd.TLSConfig(cert, "")
	return cert, cfg, err
}

// credentials reads what the API's listener shows and asks for. Auth is nil
// when it asks for nothing, the certificate and its configuration without TLS.
func credentials(s *settings.Settings) (auth *httpd.Auth, cert *httpd.Certificate, cfg *tls.Config, err error) {
	if s.TLSCert != "" {
		if cert, err = httpd.NewCertificate(s.TLSCert, s.TLSKey); err != nil {
			return nil, nil, nil, settings.Usagef("--tls-cert %q, --tls-key %q: must be a certificate and its key in PEM form; %v", s.TLSCert, s.TLSKey, err)
		}
		if cfg, err = httpd.TLSConfig(cert, s.ClientCA); err != nil {
			return nil, nil, nil, settings.Usagef("--client-ca %q: must be a file of certificates in PEM form; %v", s.ClientCA, err)
		}
	}
	if auth, err = httpd.NewAuth(s.TokenFile, s.ClientCA != ""); err != nil {
		return nil, nil, nil, settings.Usagef("--auth-token-file %q: must be a file of bearer tokens, one per line; %v", s.TokenFile, err)
	}
	if s.ClientRoles != "" {
		if err := auth.LoadCertificates(s.ClientRoles); err != nil {
			return nil, nil, nil, settings.Usagef("--client-roles-file %q: must be a file of names of client certificates and what they may do, one per line; %v", s.ClientRoles, err)
		}
	}
	return auth, cert, cfg, nil
}

// checkFilesEvery is how often the manager looks for changed files of credentials. Kubernetes takes up to a minute to bring a changed
// Secret to a pod, so less would gain nothing.
const checkFilesEvery = 10 * time.Second

// watched are files that load reads again.
type watched struct {
	what  string
	files []string
	load  func() error
	seen  []os.FileInfo // of files; nil: it cannot be read
}

// changed reports whether a file is another one, or was written, since the last call.
func (w *watched) changed() (changed bool) {
	now := make([]os.FileInfo, len(w.files))
	for i, name := range w.files {
		if info, err := os.Stat(name); err == nil {
			now[i] = info
		}
		if w.seen == nil || sameFile(w.seen[i], now[i]) {
			continue
		}
		changed = true
	}
	w.seen = now
	return changed
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// credentialFiles are the files that are read again.
func (a *app) credentialFiles() (all []*watched) {
	add := func(what string, load func() error, files ...string) {
		all = append(all, &watched{what: what, files: files, load: load})
	}
	s := a.settings
	if s.TokenFile != "" {
		add("tokens", func() error { return a.auth.Load(s.TokenFile) }, s.TokenFile)
	}
	if s.ClientRoles != "" {
		add("client roles", func() error { return a.auth.LoadCertificates(s.ClientRoles) }, s.ClientRoles)
	}
	if a.certificate != nil {
		add("certificate", a.certificate.Load, a.certificate.Files()...)
	}
	if a.adminCertificate != nil {
		add("certificate of --admin", a.adminCertificate.Load, a.adminCertificate.Files()...)
	}
	if s.Peers.TokenFile != "" {
		add("tokens for the peers", a.peers.LoadTokens, s.Peers.TokenFile)
	}
	return all
}

// reload reads the files of credentials again, all of them at a SIGHUP, and each one that has changed.
func (a *app) reload(ctx context.Context) {
	all := a.credentialFiles()
	for _, w := range all { // a start may have taken long, and files may have changed meanwhile
		w.changed()
		if err := w.load(); err != nil {
			a.reloaded(w.what, err)
		}
	}
	tick := time.NewTicker(checkFilesEvery)
	defer tick.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-a.hangup:
			if asked = true; len(all) == 0 {
				a.log.Info("SIGHUP has no effect: there are no files of tokens, roles or certificates")
			}
		case <-tick.C:
		}
		for _, w := range all {
			if w.changed() || asked {
				a.reloaded(w.what, w.load())
			}
		}
	}
}

func (a *app) reloaded(what string, err error) {
	if err != nil {
		a.log.Error(what+" not reloaded; the previous one stays in use", "error", err.Error())
		return
	}
	a.log.Info(what + " reloaded")
}
