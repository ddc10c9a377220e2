// Package dsn reads the address of an etcd cluster from a setting.
package dsn

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Config is what a DSN says.
type Config struct {
	// Endpoints are URLs of the members, each http://host:port or https://host:port.
	Endpoints []string
	// Prefix begins every key of the engine. It begins with a slash and does not end with one.
	Prefix string
	// User and Password are empty where the DSN has none.
	User, Password string
	// CA, Cert and Key are PEM files: the authorities of the members, and this client's certificate.
	CA, Cert, Key string
	// Compact is how much history the engine lets etcd keep; 0 leaves compaction to others.
	Compact time.Duration
}

const (
	defaultPrefix  = "/oncegate"
	defaultPort    = "2379"
	defaultCompact = 5 * time.Minute
	maxPrefix      = 128
	maxEndpoints   = 32
)

// Parse parses "http://[user:password@]host[:port][,http://host...][?prefix=/oncegate]". With https the further
// parameters are ca, cert and key, names of PEM files. compact is how much history etcd keeps, such as 5m; 0 leaves
// compaction to others. No error holds the password.
func Parse(dsn string) (Config, error) {
	c := Config{Prefix: defaultPrefix, Compact: defaultCompact}
	list, query, _ := strings.Cut(dsn, "?")
	members := strings.Split(list, ",")
	if len(members) > maxEndpoints {
		return Config{}, fmt.Errorf("%d addresses: at most %d are allowed", len(members), maxEndpoints)
	}
	for i, m := range members {
		if err := c.addMember(m); err != nil {
			return Config{}, fmt.Errorf("address %d: %w", i+1, err)
		}
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return Config{}, errors.New("the parameters after ? are malformed")
	}
	for name, v := range values {
		if len(v) != 1 {
			return Config{}, fmt.Errorf("parameter %s: is given %d times", name, len(v))
		}
		if err := c.set(name, v[0]); err != nil {
			return Config{}, err
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return Config{}, errors.New("parameters cert and key: must be given together")
	}
	if c.CA+c.Cert != "" && !c.secure() {
		return Config{}, errors.New("parameters ca, cert and key: need addresses that begin with https://")
	}
	return c, nil
}

func (c *Config) secure() bool { return strings.HasPrefix(c.Endpoints[0], "https://") }

func (c *Config) addMember(m string) error {
	u, err := url.Parse(strings.TrimSpace(m))
	switch {
	case err != nil: // the error quotes the URL with its password
		return errors.New("is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("must begin with http:// or https://")
	case u.Hostname() == "":
		return errors.New("has no host")
	case strings.Trim(u.Path, "/") != "" || u.Fragment != "":
		return errors.New("must end after the port")
	}
	port := cmp.Or(u.Port(), defaultPort)
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q: must be 1 to 65535", port)
	}
	e := u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port)
	if len(c.Endpoints) > 0 && strings.HasPrefix(e, "https:") != c.secure() {
		return errors.New("must have the scheme of the first: all with TLS, or none")
	}
	c.Endpoints = append(c.Endpoints, e)
	if u.User == nil {
		return nil
	}
	password, _ := u.User.Password()
	if c.User != "" && (c.User != u.User.Username() || c.Password != password) {
		return errors.New("must have the same user and password as the others")
	}
	c.User, c.Password = u.User.Username(), password
	if c.User == "" {
		return errors.New("the user has no name")
	}
	return nil
}

func (c *Config) set(name, v string) error {
	switch name {
	case "prefix":
		c.Prefix = strings.TrimSuffix(v, "/")
		if !strings.HasPrefix(v, "/") || c.Prefix == "" || len(v) > maxPrefix || strings.Trim(v, prefixChars) != "" {
			return fmt.Errorf("parameter prefix %q: must begin with a slash, and have 2 to %d letters, digits, slashes and any of ._-", v, maxPrefix)
		}
	case "ca":
		c.CA = v
	case "cert":
		c.Cert = v
	case "key":
		c.Key = v
	case "compact":
		d, err := time.ParseDuration(v)
		if v != "0" && (err != nil || d < 10*time.Second && d != 0 || d > 720*time.Hour) {
			return fmt.Errorf("parameter compact %q: must be 10s to 720h, or 0", v)
		}
		c.Compact = d
	default:
		return fmt.Errorf("parameter %q: must be one of prefix, ca, cert, key and compact", name)
	}
	return nil
}

const prefixChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"

// TLS reads the files. It returns nil without TLS.
func (c *Config) TLS() (*tls.Config, error) {
	if !c.secure() {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("parameter ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("parameter ca %q: has no certificate in PEM form", c.CA)
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("parameters cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
