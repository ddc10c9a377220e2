package server

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/oncegate/oncegate/manager/api"
)

// Auth decides who may call. Every configured means must be satisfied. A nil
// Auth admits everyone.
type Auth struct {
	tokens      atomic.Pointer[[][sha256.Size]byte] // nil: no token is asked for
	certificate bool
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
// tokens can be changed without an interruption; empty lines and lines that
// begin with # are skipped.
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

// Load replaces the tokens by those of a file. On error the old ones stay. No
// token is ever part of an error.
func (a *Auth) Load(tokenFile string) error {
	b, err := os.ReadFile(tokenFile)
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	var tokens [][sha256.Size]byte
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 2*maxTokenBytes)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(line) < minTokenBytes || len(line) > maxTokenBytes || strings.ContainsAny(line, " \t") {
			return fmt.Errorf("token file %s: line %d: a token must be %d to %d bytes without spaces", tokenFile, n, minTokenBytes, maxTokenBytes)
		}
		tokens = append(tokens, sha256.Sum256([]byte(line)))
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("token file %s: %w", tokenFile, err)
	}
	if len(tokens) == 0 || len(tokens) > maxTokens {
		return fmt.Errorf("token file %s: must hold 1 to %d tokens, one per line", tokenFile, maxTokens)
	}
	a.tokens.Store(&tokens)
	return nil
}

// freeBody is how large a body may be that is read before anybody looks at the
// credentials that came with it.
const freeBody = 64 << 10

// early reports whether a request shall be authorized before its body is read:
// a body takes its memory when it is announced, and that is for those who may
// send one. Length is negative when it was not announced.
func (a *Auth) early(length int) bool {
	return a != nil && (length < 0 || length > freeBody)
}

// check returns the problem of a request that may not pass.
func (a *Auth) check(r *Request) *api.Problem {
	if a == nil {
		return nil
	}
	if a.certificate && !r.source.verified() {
		return unauthorized("a client certificate of the configured CA is required")
	}
	return a.checkToken(r.Header("authorization"))
}

// checkToken is the part of check that needs nothing but the header
// authorization.
func (a *Auth) checkToken(header string) *api.Problem {
	tokens := a.tokens.Load()
	if tokens == nil {
		return nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return unauthorized("a bearer token is required")
	}
	// Digests have one length and every token is compared, so that time tells
	// nothing about any of them.
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	match := 0
	for i := range *tokens {
		match |= subtle.ConstantTimeCompare(sum[:], (*tokens)[i][:])
	}
	if match == 0 {
		return unauthorized("the bearer token is not valid")
	}
	return nil
}

func unauthorized(detail string) *api.Problem {
	return &api.Problem{Status: 401, Code: api.CodeUnauthorized, Title: "Unauthorized", Detail: detail}
}
