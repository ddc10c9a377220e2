package peers

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// MaxPeers bounds the peers of one manager.
	MaxPeers = 32
	// MaxNameBytes bounds an origin's name.
	MaxNameBytes = 32
)

// CheckName returns an error unless s may name an origin: 1 to 32 letters, digits and _ . -
func CheckName(s string) error {
	ok := len(s) >= 1 && len(s) <= MaxNameBytes
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
	}
	if !ok {
		return fmt.Errorf("must be 1 to %d letters, digits and _ . -", MaxNameBytes)
	}
	return nil
}

// Peer is another data centre.
type Peer struct {
	// Name is its origin.
	Name string
	// URL is that of its managers' API listener: a scheme, http or https, and a host.
	URL string
}

// ParsePeer reads NAME=URL.
func ParsePeer(v string) (Peer, error) {
	name, address, ok := strings.Cut(v, "=")
	if !ok {
		return Peer{}, errors.New("must be NAME=URL, as dc2=http://10.2.0.1:8090")
	}
	if err := CheckName(name); err != nil {
		return Peer{}, fmt.Errorf("the name %q %w", name, err)
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return Peer{}, errors.New("must be NAME=URL, where URL is that of the peer's API listener, as http://10.2.0.1:8090 or https://oncegate.dc2.example")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return Peer{}, fmt.Errorf("the port %q must be 1 to 65535", port)
		}
	}
	return Peer{Name: name, URL: u.Scheme + "://" + u.Host}, nil
}

// Config says who the peers are and how to call them.
type Config struct {
	// Origin is the name of this data centre; "" without a feed.
	Origin string
	Peers  []Peer
	// TokenFile names a file with the bearer token for the peers, CA one with the CAs that sign their certificates
	// (default the system's), Cert and Key the client certificate for them. All are in PEM form, and all may be empty.
	TokenFile, CA, Cert, Key string
	// Transport carries the calls in the place of TCP, for simulations; CA, Cert and Key are then without effect.
	Transport http.RoundTripper
}

// Network calls the peers. It is safe for concurrent use.
type Network struct {
	config Config
	client *http.Client
	tokens atomic.Pointer[map[string]string] // by peer; "" is for all others
}

// pingAfter is how long an HTTP/2 connection may be silent before a ping asks whether it still works, and how long the
// answer may take. Without that, calls would share a connection that the network has forgotten for many minutes.
const pingAfter = 3 * time.Second

// NewNetwork reads the files of the configuration. Its error names the flag.
func NewNetwork(c Config) (*Network, error) {
	n := &Network{config: c}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("--peer-ca %q: %w", c.CA, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--peer-ca %q: must be a file of certificates in PEM form", c.CA)
		}
	}
	if c.Cert != "" {
		// Read at each handshake: a renewed certificate needs no restart.
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
			return &cert, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("--peer-cert %q, --peer-key %q: must be a certificate and its key in PEM form; %w", c.Cert, c.Key, err)
		}
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	if c.TokenFile != "" {
		if err := n.LoadTokens(); err != nil {
			return nil, err
		}
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{
			DialContext:     (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSClientConfig: cfg, TLSHandshakeTimeout: 5 * time.Second, ForceAttemptHTTP2: true,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter},
			MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
		}
	}
	n.client = &http.Client{
		Transport: c.Transport,
		// A peer that redirects would get the credentials of another.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return n, nil
}

// LoadTokens reads the file with the tokens again. A mistake in it changes nothing.
func (n *Network) LoadTokens() error {
	tokens, err := readTokens(n.config.TokenFile, n.config.Peers)
	if err != nil {
		return fmt.Errorf("--peer-token-file %q: %w", n.config.TokenFile, err)
	}
	n.tokens.Store(&tokens)
	return nil
}

// readTokens reads lines TOKEN, which is for all peers, or NAME TOKEN. No token is part of an error.
func readTokens(file string, peers []Peer) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	tokens := make(map[string]string)
	for i, line := range strings.Split(string(b), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		name, token := "", fields[0]
		if len(fields) == 2 {
			name, token = fields[0], fields[1]
			if !slices.ContainsFunc(peers, func(p Peer) bool { return p.Name == name }) {
				return nil, fmt.Errorf("line %d: must be TOKEN or NAME TOKEN, where NAME is that of a --peer", i+1)
			}
		}
		if len(fields) > 2 || tokens[name] != "" {
			return nil, fmt.Errorf("line %d: must be TOKEN, which is for all peers, or NAME TOKEN, each name once", i+1)
		}
		tokens[name] = token
	}
	if len(tokens) == 0 {
		return nil, errors.New("must hold a token")
	}
	return tokens, nil
}

// Origin is the name of this data centre.
func (n *Network) Origin() string { return n.config.Origin }

// Names are those of all data centres, this one included, in order.
func (n *Network) Names() []string {
	names := []string{n.config.Origin}
	for _, p := range n.config.Peers {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// Peers are the other data centres.
func (n *Network) Peers() []Peer { return n.config.Peers }

// URL is the address of a peer without a path; "" for a name that is none of the peers'.
func (n *Network) URL(name string) string {
	for _, p := range n.config.Peers {
		if p.Name == name {
			return p.URL
		}
	}
	return ""
}

// Do makes a request to a peer with this data centre's credentials. The request's context bounds it.
func (n *Network) Do(peer string, r *http.Request) (*http.Response, error) {
	if tokens := n.tokens.Load(); tokens != nil {
		token := cmp.Or((*tokens)[peer], (*tokens)[""])
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	return n.client.Do(r)
}

// Close closes idle connections.
func (n *Network) Close() { n.client.CloseIdleConnections() }
