package httpd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// manyFunctions are the words of a worker of n functions.
func manyFunctions(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " worker:f%d", i)
	}
	return b.String()
}

// TestWordsAddUp: what a line's words say together.
func TestWordsAddUp(t *testing.T) {
	all := []Role{Gate, Submitter, Worker, NamedWorker, Operator, Admin, Plain}
	for words, c := range map[string]struct {
		may       []Role
		functions string // "" is any
		owner     bool
	}{
		"":                        {[]Role{Plain}, "", false},
		"gate":                    {[]Role{Gate}, "none", false},
		"submitter":               {[]Role{Submitter}, "none", true},
		"worker":                  {[]Role{Worker}, "", false},
		"worker:f":                {[]Role{NamedWorker}, "f", false},
		"worker:g worker:f.x:y-~": {[]Role{NamedWorker}, "f.x:y-~ g", false},
		"worker worker:f":         {[]Role{Worker, NamedWorker}, "", false},
		"operator":                {[]Role{Operator}, "none", false},
		"gate  submitter\tgate":   {[]Role{Gate, Submitter}, "none", true},
		"admin":                   {all, "", false},
		"worker:f admin":          {all, "", false},
	} {
		c1, ok := parseCredential("a-token-of-20-bytes- " + words)
		if !ok {
			t.Errorf("%q: refused", words)
			continue
		}
		r := &Request{caller: caller{token: &c1.rights}}
		for _, role := range all {
			if got := r.May(role); got != slices.Contains(c.may, role) {
				t.Errorf("%q: may %d: %v", words, role, got)
			}
		}
		names, limited := r.Functions()
		if got := strings.Join(names, " "); limited != (c.functions != "") || limited && got != strings.Replace(c.functions, "none", "", 1) {
			t.Errorf("%q: functions %q, limited %v", words, got, limited)
		}
		if owner := r.Owner(); (owner != "") != c.owner || strings.Contains(owner, "token") {
			t.Errorf("%q: owner %q", words, owner)
		}
	}
	if _, ok := parseCredential("a-token-of-20-bytes-" + manyFunctions(maxFunctions)); !ok {
		t.Error("as many functions as are allowed were refused")
	}
	// A caller may do what both its token and its certificate allow.
	token, _ := parseWords([]string{"worker:a", "worker:b", "gate"})
	cert, _ := parseWords([]string{"worker:b", "worker:c", "operator"})
	r := &Request{caller: caller{&token, &cert}}
	if names, limited := r.Functions(); !limited || strings.Join(names, " ") != "b" || !r.May(NamedWorker) || r.May(Gate) || r.May(Operator) {
		t.Errorf("token and certificate: %v %v", names, limited)
	}
}

// TestWrongFilesAreExplained: the message names the line and the words, and no token.
func TestWrongFilesAreExplained(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, "# gates\nfirst-token-of-20-bytes gate\n\nother-token-of-20-bytes gates\n")
	_, err := NewAuth(file, false)
	if err == nil || !strings.Contains(err.Error(), "line 4: ") || !strings.Contains(err.Error(), "gate, submitter, worker, worker:FUNCTION, operator, peer, admin") ||
		strings.Contains(err.Error(), "of-20-bytes") || strings.Contains(err.Error(), "gates") {
		t.Errorf("token file: %v", err)
	}
	a, err := NewAuth("", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"gate", "CN= gate", "CN=x", "CN=x y gate", "cn=x gate", "OU=x gate", `CN="x gate`, `CN="x"gate`, `CN="" gate`, "SAN=x gates", "CN=x worker:", "CN=x\nCN=y gate",
		"CN=x gate\nCN=x admin", "x=CN gate"} {
		writeFile(t, file, "\n"+line+"\n")
		if err := a.LoadCertificates(file); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: %v", line, err)
		}
	}
	writeFile(t, file, "# nothing\n")
	if err := a.LoadCertificates(file); err == nil {
		t.Error("an empty file was accepted")
	}
	if err := a.LoadCertificates(filepath.Join(dir, "none")); err == nil || a.certificates.Load() != nil {
		t.Errorf("a missing file: %v", err)
	}
	writeFile(t, file, "CN=\"payments gate\" gate\nSAN=spiffe://x/worker worker:f worker:g # x\n")
	if err := a.LoadCertificates(file); err == nil {
		t.Error("a comment after words was accepted")
	}
}

// TestCertificateNames: all names of a certificate count.
func TestCertificateNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roles")
	writeFile(t, file, `CN="payments gate" gate
SAN=spiffe://x/worker worker:f submitter
SAN=w.example worker:g submitter
SAN=ops@example.com operator
`)
	a, err := NewAuth("", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.LoadCertificates(file); err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{}
	if r := certificateRights(*a.certificates.Load(), cert); r.roles != 0 {
		t.Errorf("a certificate without names: %+v", r)
	}
	cert.Subject.CommonName = "payments gate"
	if r := certificateRights(*a.certificates.Load(), cert); r.roles != Gate {
		t.Errorf("by its CN: %+v", r)
	}
	cert.DNSNames, cert.URIs = []string{"other", "w.example"}, []*url.URL{{Scheme: "spiffe", Host: "x", Path: "/worker"}}
	cert.EmailAddresses = []string{"ops@example.com"}
	r := certificateRights(*a.certificates.Load(), cert)
	if r.roles != Gate|Submitter|NamedWorker|Operator || strings.Join(r.functions, " ") != "g f" || r.owner != ownerOf(Submitter, "certificate", "SAN=w.example") {
		t.Errorf("by all names: %+v", r)
	}
	if again := certificateRights(*a.certificates.Load(), cert); !again.equal(r) {
		t.Errorf("the second time: %+v", again)
	}
}

// TestRolesOfCertificates: over TLS, with and without a token as well.
func TestRolesOfCertificates(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t)
	serverCert, serverKey := ca.issue(t, dir, "server", x509.ExtKeyUsageServerAuth)
	cert, err := NewCertificate(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := TLSConfig(cert, ca.file(t, dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roles, tokens := filepath.Join(dir, "roles"), filepath.Join(dir, "tokens")
	writeFile(t, roles, "CN=client submitter\nCN=boss admin\n")
	writeFile(t, tokens, "submitters-token-of-20 submitter\nworkers-token-of-20--- worker\nadmins-token-of-20---- admin\n")
	as := func(name string) *tls.Config {
		c := &tls.Config{RootCAs: x509.NewCertPool()}
		c.RootCAs.AddCert(ca.cert)
		pair, err := tls.LoadX509KeyPair(ca.issue(t, dir, name, x509.ExtKeyUsageClientAuth))
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
		return c
	}
	for _, c := range []struct {
		name, tokens, token string
		post, del           int
	}{
		{"client", "", "", 201, 403},
		{"boss", "", "", 201, 201},
		{"nobody", "", "", 403, 403},
		{"client", tokens, "", 401, 401},
		{"client", tokens, "submitters-token-of-20", 201, 403},
		{"client", tokens, "admins-token-of-20----", 201, 403},
		{"client", tokens, "workers-token-of-20---", 403, 403},
		{"boss", tokens, "submitters-token-of-20", 201, 403},
		{"boss", tokens, "admins-token-of-20----", 201, 201},
	} {
		auth, err := NewAuth(c.tokens, true)
		if err == nil {
			err = auth.LoadCertificates(roles)
		}
		if err != nil {
			t.Fatal(err)
		}
		s := newSite(t, siteOptions{server: Options{Auth: auth}, tls: cfg, client: as(c.name)})
		post := s.Do("POST", "/new", "", "", "authorization", "Bearer "+c.token)
		del := s.Do("DELETE", "/new", "", "", "authorization", "Bearer "+c.token)
		if post.Status != c.post || del.Status != c.del {
			t.Errorf("%s with the token %q: %d %d, want %d %d", c.name, c.token, post.Status, del.Status, c.post, c.del)
		}
		if a := s.JSON("GET", "/healthz", ""); a.Status != 200 {
			t.Errorf("health: %d", a.Status)
		}
	}
}

func FuzzRoleFiles(f *testing.F) {
	f.Add("a-token-of-20-bytes- gate worker:f")
	f.Add(`CN="payments gate" gate submitter`)
	f.Add("SAN=spiffe://x/y worker:a worker:b")
	f.Fuzz(func(t *testing.T, line string) {
		line = strings.TrimSpace(line)
		if line == "" {
			return
		}
		if c, ok := parseCredential(line); ok {
			if c.rights.roles == 0 || c.rights.roles&Anyone != 0 || (c.rights.roles == Plain) != (len(strings.Fields(line)) == 1) {
				t.Errorf("token line %q: %+v", line, c.rights)
			}
		}
		if name, r, ok := parseCertificate(line); ok {
			if r.roles == 0 || r.roles&(Anyone|Plain) != 0 || !strings.Contains(name, "=") {
				t.Errorf("certificate line %q: %q %+v", line, name, r)
			}
		}
	})
}
