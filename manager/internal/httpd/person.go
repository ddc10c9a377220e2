package httpd

import (
	"crypto/sha256"
	"log/slog"
	"strings"
)

// TokenID stands for a bearer token and cannot be used as one.
type TokenID [sha256.Size]byte

// IDOf returns the id of a token. Space around the token does not count.
func IDOf(token string) TokenID { return sha256.Sum256([]byte(strings.TrimSpace(token))) }

// Person is what the holder of a token may do on pages for people.
type Person struct {
	// Number is the token's position in the file, from 1; 0 if no token was asked for.
	Number int
	roles  Role
	// certificate is the CN of the client certificate; empty without one.
	certificate string
}

// May reports whether the person has one of the roles. An administrator has all of them.
func (p Person) May(roles Role) bool { return p.roles&(roles|Admin) != 0 }

// TokensAsked reports whether callers need a token.
func (a *Auth) TokensAsked() bool { return a != nil && a.tokens.Load() != nil }

// CertificatesAsked reports whether callers of the API need a client certificate.
func (a *Auth) CertificatesAsked() bool { return a != nil && a.certificate }

// Anonymous is what a person without a token may do on a listener that checks no certificates,
// where none is asked for: everything, but nothing if callers of the API need a certificate.
func (a *Auth) Anonymous() Person {
	if a.CertificatesAsked() {
		return Person{}
	}
	return Person{roles: Admin}
}

// Person returns what the holder of a token may do; false if the token is not in the file (any
// more).
func (a *Auth) Person(id TokenID) (Person, bool) {
	tokens := a.tokens.Load()
	if tokens == nil {
		return Person{}, false
	}
	i := find(*tokens, id)
	if i < 0 {
		return Person{}, false
	}
	return Person{Number: i + 1, roles: (*tokens)[i].rights.roles}, true
}

// TokenWords returns the words of each token of the file, in the file's order, and nothing of the
// tokens. A token without words has none.
func (a *Auth) TokenWords() [][]string {
	if !a.TokensAsked() {
		return nil
	}
	var all [][]string
	for _, c := range *a.tokens.Load() {
		words := c.rights.roles.words()
		for _, f := range c.rights.functions {
			words = append(words, "worker:"+f)
		}
		all = append(all, words)
	}
	return all
}

// Audit writes to the audit log what a person did: from where, via the page or the API, and with which token. Nothing of
// the token is in it.
func (p Person) Audit(log *slog.Logger, via, remote, what string, fields ...any) {
	who := []any{"remote", remote, "via", via, "token", p.Number, "roles", strings.Join(p.roles.words(), " ")}
	if p.certificate != "" {
		who = append(who, "certificate", p.certificate)
	}
	log.Warn(what, append(who, fields...)...)
}

// Audit writes to the audit log what the caller did. It is for what operators and administrators change, also by a
// program, and not for the calls of gates, submitters and workers.
func (r *Request) Audit(what string, fields ...any) {
	p := Person{roles: Admin}
	if c := r.caller.token; c != nil {
		p.Number, p.roles = c.number, c.roles
	}
	if cert := r.source.certificate(); cert != nil {
		p.certificate = cert.Subject.CommonName
		if c := r.caller.certificate; c != nil && r.caller.token == nil {
			p.roles = c.roles
		}
	}
	p.Audit(r.server.opts.Audit, "api", r.Remote(), what, fields...)
}

// words are those of the roles, in the order of roleWords.
func (r Role) words() []string {
	words := []string{}
	for _, w := range roleWords {
		if r&w.role != 0 && w.role != NamedWorker {
			words = append(words, w.word)
		}
	}
	return words
}
