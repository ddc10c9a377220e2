package httpd

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/api"
)

// Auth decides who may call, and what. Every configured means must be satisfied, and a caller may do only what
// all of them allow. A nil Auth admits everyone as an administrator.
type Auth struct {
	tokens      atomic.Pointer[[]credential] // nil: no token is asked for
	certificate bool
	// certificates are the rights by name of a certificate; nil: every certificate of the CA may do everything.
	certificates atomic.Pointer[map[string]*rights]
}

// credential is a token of the file.
type credential struct {
	digest [sha256.Size]byte
	rights rights
}

// Bounds of a token file.
const (
	minTokenBytes = 16
	maxTokenBytes = 4096
	maxTokens     = 64
)

// NewAuth returns an Auth that demands one of the bearer tokens in tokenFile,
// when that is not empty, and a verified client certificate, when certificate
// is set; nil when neither is asked for. The file has one token per line, so that
// tokens can be changed without an interruption. Words after a token say what it may
// do, see RoleWords; several add up, and a token without words is Plain. Empty lines and
// lines that begin with # are skipped. Where no token is asked for, every caller
// is an administrator, unless LoadCertificates says otherwise.
func NewAuth(tokenFile string, certificate bool) (*Auth, error) {
	if tokenFile == "" && !certificate {
		return nil, nil
	}
	a := &Auth{certificate: certificate}
	if tokenFile != "" {
		if err := a.Load(tokenFile); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// eachLine calls parse with the lines of a file that say something. The error names the line and nothing of what
// it says, which may be a credential.
func eachLine(what, file string, parse func(line string) error) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, maxLineBytes)
	n := 1
	for ; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := parse(line); err != nil {
			return fmt.Errorf("%s %s: line %d: %w", what, file, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s %s: line %d: %w", what, file, n, err)
	}
	return nil
}

// maxLineBytes bounds a line: a token, and the names of as many functions as it may have.
const maxLineBytes = 32 << 10

// Load replaces the tokens by those of a file. On error the old ones stay. No
// token is ever part of an error.
func (a *Auth) Load(tokenFile string) error {
	var tokens []credential
	err := eachLine("token file", tokenFile, func(line string) error {
		c, ok := parseCredential(line)
		if !ok {
			return fmt.Errorf("must be a token of %d to %d bytes without spaces, followed only by the words %s; FUNCTION is 1 to %d letters, digits and _ . : - ~, at most %d of them",
				minTokenBytes, maxTokenBytes, RoleWords(), maxFunctionBytes, maxFunctions)
		}
		for i := range tokens {
			if tokens[i].digest == c.digest && !tokens[i].rights.equal(&c.rights) {
				return errors.New("the same token is there with other words")
			}
		}
		c.rights.number = len(tokens) + 1
		tokens = append(tokens, c)
		return nil
	})
	if err != nil {
		return err
	}
	if len(tokens) == 0 || len(tokens) > maxTokens {
		return fmt.Errorf("token file %s: must hold 1 to %d tokens, one per line", tokenFile, maxTokens)
	}
	a.tokens.Store(&tokens)
	return nil
}

// TokenOf returns the token of a line of a token file.
func TokenOf(line string) (token string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return "", false
	}
	_, ok = parseWords(fields[1:])
	return fields[0], ok
}

// parseCredential reads a line of a token file.
func parseCredential(line string) (c credential, ok bool) {
	fields := strings.Fields(line)
	token := fields[0]
	c.digest = sha256.Sum256([]byte(token))
	c.rights, ok = parseWords(fields[1:])
	c.rights.owner = ownerOf(c.rights.roles, "token", token)
	return c, ok && len(token) >= minTokenBytes && len(token) <= maxTokenBytes
}

// check returns what a request may do, or returns the problem of one that may not pass.
func (a *Auth) check(r *Request) (c caller, p *api.Problem) {
	if a == nil {
		return c, nil
	}
	if a.certificate {
		cert := r.source.certificate()
		if cert == nil {
			return c, unauthorized("a client certificate of the configured CA is required")
		}
		if all := a.certificates.Load(); all != nil {
			c.certificate = certificateRights(*all, cert)
		}
	}
	c.token, p = a.checkToken(r.Header("authorization"))
	return c, p
}

// checkToken is the part of check that needs nothing but the header
// authorization. Without a token file the rights are nil.
func (a *Auth) checkToken(header string) (*rights, *api.Problem) {
	tokens := a.tokens.Load()
	if tokens == nil {
		return nil, nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return nil, unauthorized("a bearer token is required")
	}
	match := find(*tokens, sha256.Sum256([]byte(strings.TrimSpace(token))))
	if match < 0 {
		return nil, unauthorized("the bearer token is not valid")
	}
	return &(*tokens)[match].rights, nil
}

// find returns the index of a token, -1 for an unknown one. Digests have one length and every
// token is compared, so that the time shows nothing about any of them.
func find(tokens []credential, digest [sha256.Size]byte) int {
	match := -1
	for i := range tokens {
		match = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], tokens[i].digest[:]), i, match)
	}
	return match
}

func unauthorized(detail string) *api.Problem {
	return &api.Problem{Status: 401, Code: api.CodeUnauthorized, Title: "Unauthorized", Detail: detail}
}
