package httpd

import (
	"log/slog"
	"strings"
)

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
