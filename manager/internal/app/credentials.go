package app

import (
	"context"
	"crypto/tls"

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

// reload reads the token file and the certificate again at each SIGHUP.
func (a *app) reload(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.hangup:
		}
		if a.settings.TokenFile == "" && a.certificate == nil && a.adminCertificate == nil && a.settings.Peers.TokenFile == "" {
			a.log.Info("SIGHUP has no effect: neither --auth-token-file nor --tls-cert nor --admin-tls-cert nor --peer-token-file is set")
		}
		if a.settings.TokenFile != "" {
			a.reloaded("tokens", a.auth.Load(a.settings.TokenFile))
		}
		if a.settings.ClientRoles != "" {
			a.reloaded("client roles", a.auth.LoadCertificates(a.settings.ClientRoles))
		}
		if a.certificate != nil {
			a.reloaded("certificate", a.certificate.Load())
		}
		if a.adminCertificate != nil {
			a.reloaded("certificate of --admin", a.adminCertificate.Load())
		}
		if a.settings.Peers.TokenFile != "" {
			a.reloaded("tokens for the peers", a.peers.LoadTokens())
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
