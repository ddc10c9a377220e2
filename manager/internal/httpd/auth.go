package httpd

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
	tokens      atomic.Pointer[[]credential] // nil: no token is asked for
	certificate bool
}

// credential is a token of the file.
type credential struct {
	digest [sha256.Size]byte
	admin  int // 1 or 0, for arithmetic that takes the same time for both
}

// adminWord follows the token of an administrator in the file.
const adminWord = "admin"

// Bounds of a token file.
const (
	minTokenBytes = 16
	maxTokenBytes = 4096
	maxTokens     = 64
)

// NewAuth returns an Auth that demands one of the bearer tokens in tokenFile,
// when that is not empty, and a verified client certificate, when certificate
// is set; nil when neither is asked for. The file has one token per line, so that
// tokens can be changed without an interruption; a token that is followed by the
// word admin is an administrator's, see Route.Admin. Empty lines and lines that
// begin with # are skipped. Where no token is asked for, every caller is an
// administrator.
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
	var tokens []credential
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 2*maxTokenBytes)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		c, ok := parseCredential(line)
		if !ok {
			return fmt.Errorf("token file %s: line %d: must be a token of %d to %d bytes without spaces, and nothing behind it but the word %s",
				tokenFile, n, minTokenBytes, maxTokenBytes, adminWord)
		}
		for _, other := range tokens {
			if other.digest == c.digest && other.admin != c.admin {
				return fmt.Errorf("token file %s: line %d: the same token is there with and without the word %s", tokenFile, n, adminWord)
			}
		}
		tokens = append(tokens, c)
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

// parseCredential reads a line of a token file.
func parseCredential(line string) (c credential, ok bool) {
	fields := strings.Fields(line)
	if len(fields) == 2 && fields[1] == adminWord {
		c.admin = 1
	} else if len(fields) != 1 {
		return c, false
	}
	token := fields[0]
	c.digest = sha256.Sum256([]byte(token))
	return c, len(token) >= minTokenBytes && len(token) <= maxTokenBytes
}

// check returns the problem of a request that may not pass. Of one that may it
// tells whether it is an administrator's.
func (a *Auth) check(r *Request) (admin bool, p *api.Problem) {
	if a == nil {
		return true, nil
	}
	if a.certificate && !r.source.verified() {
		return false, unauthorized("a client certificate of the configured CA is required")
	}
	return a.checkToken(r.Header("authorization"))
}

// checkToken is the part of check that needs nothing but the header
// authorization.
func (a *Auth) checkToken(header string) (admin bool, p *api.Problem) {
	tokens := a.tokens.Load()
	if tokens == nil {
		return true, nil
	}
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return false, unauthorized("a bearer token is required")
	}
	// Digests have one length and every token is compared, so that time tells
	// nothing about any of them.
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	match, role := 0, 0
	for i := range *tokens {
		c := &(*tokens)[i]
		equal := subtle.ConstantTimeCompare(sum[:], c.digest[:])
		match |= equal
		role |= equal & c.admin
	}
	if match == 0 {
		return false, unauthorized("the bearer token is not valid")
	}
	return role == 1, nil
}

func unauthorized(detail string) *api.Problem {
	return &api.Problem{Status: 401, Code: api.CodeUnauthorized, Title: "Unauthorized", Detail: detail}
}

func forbidden() *api.Problem {
	return &api.Problem{
		Status: 403, Code: api.CodeForbidden, Title: "Forbidden",
		Detail: "the bearer token is not an administrator's: its line in the manager's token file must end with the word " + adminWord,
	}
}
