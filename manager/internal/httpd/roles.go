package httpd

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// Role is a set of what callers are for. A Route names the roles that may call it.
type Role uint16

// The roles. A caller may have several.
const (
	// Gate makes the calls of the ledger.
	Gate Role = 1 << iota
	// Submitter submits jobs and reads its own, and writes entries of logs.
	Submitter
	// Worker works on the jobs of all functions, and reads entries of logs.
	Worker
	// NamedWorker works on the jobs of the functions that its words name.
	NamedWorker
	// Operator lists, reads, resolves and pauses.
	Operator
	// Admin may do everything. No route needs to name it.
	Admin
	// Plain is a token without words. It may do what every token could before there were roles.
	Plain
	// Peer is the manager of another data centre: it reads changes and digests.
	Peer
	// Anyone is every caller, with credentials or without. It stands alone. Bodies of such calls are dropped, and take no memory.
	Anyone
)

type roleWord struct {
	word string
	role Role
}

// roleWords are the words of the files, in the order in which messages list them.
var roleWords = []roleWord{{"gate", Gate}, {"submitter", Submitter}, {"worker", Worker}, {"worker:FUNCTION", NamedWorker}, {"operator", Operator}, {"peer", Peer}, {"admin", Admin}}

// RoleWords lists the words that give rights, for messages and help texts.
func RoleWords() string {
	words := make([]string, len(roleWords))
	for i, w := range roleWords {
		words[i] = w.word
	}
	return strings.Join(words, ", ")
}

// maxFunctions bounds the functions of one caller. A claim names as many.
const maxFunctions = 100

// maxFunctionBytes is the longest name of a function.
const maxFunctionBytes = 128

// rights are what one token, or one certificate, may do.
type rights struct {
	roles     Role
	functions []string // with NamedWorker and without Worker
	owner     string   // of the jobs that it submits
	number    int      // the token's position in the file, from 1
}

// parseWords reads the words after a token or the name of a certificate.
func parseWords(words []string) (r rights, ok bool) {
	if len(words) == 0 {
		return rights{roles: Plain}, true
	}
	for _, word := range words {
		if function, named := strings.CutPrefix(word, "worker:"); named {
			if !isFunction(function) {
				return r, false
			}
			r.roles |= NamedWorker
			if !slices.Contains(r.functions, function) {
				r.functions = append(r.functions, function)
			}
			continue
		}
		i := slices.IndexFunc(roleWords, func(w roleWord) bool { return w.word == word && w.role != NamedWorker })
		if i < 0 {
			return r, false
		}
		r.roles |= roleWords[i].role
	}
	return r, len(r.functions) <= maxFunctions
}

// isFunction reports whether a job's function can have this name.
func isFunction(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("_.:-~", rune(c)) {
			return false
		}
	}
	return name != "" && name != "." && name != ".." && len(name) <= maxFunctionBytes
}

func (r *rights) equal(other *rights) bool {
	return r.roles == other.roles && slices.Equal(r.functions, other.functions)
}

// ownerOf names the owner of jobs: a digest, so that nothing that is stored is a credential. Only a caller that
// is expressly a submitter owns what it submits.
func ownerOf(roles Role, kind, credential string) string {
	if roles&Submitter == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte("oncegate owner\x00" + kind + "\x00" + credential))
	return hex.EncodeToString(sum[:16])
}

// caller is what a request may do: what its token may, and its certificate as well. Nil rights are those of an
// administrator.
type caller struct{ token, certificate *rights }

func (c *caller) may(roles Role) bool {
	for _, r := range [...]*rights{c.token, c.certificate} {
		if r != nil && r.roles&(roles|Admin) == 0 {
			return false
		}
	}
	return true
}

// May reports whether the caller has one of the roles. An administrator has all of them.
func (r *Request) May(roles Role) bool { return r.caller.may(roles) }

// Functions returns the functions on whose jobs the caller may work, if it is limited to some. Their names are
// sorted, and there may be none.
func (r *Request) Functions() (names []string, limited bool) {
	for _, c := range [...]*rights{r.caller.token, r.caller.certificate} {
		if c == nil || c.roles&(Worker|Plain|Admin) != 0 {
			continue
		}
		if !limited {
			names, limited = slices.Clone(c.functions), true
			continue
		}
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(c.functions, name) })
	}
	slices.Sort(names)
	return names, limited
}

// Owner names the caller as the owner of the jobs that it submits, "" if it owns none.
func (r *Request) Owner() string {
	if c := r.caller.token; c != nil && c.owner != "" {
		return c.owner
	}
	if c := r.caller.certificate; c != nil {
		return c.owner
	}
	return ""
}

// CertificateOwner is Owner if a certificate names the owner and no token was asked for.
func (r *Request) CertificateOwner() string {
	if r.caller.token != nil || r.caller.certificate == nil {
		return ""
	}
	return r.caller.certificate.owner
}

// Forbidden is the error for a caller that may make the call, but not for this object.
func Forbidden(detail string) error {
	return &Refusal{api.Problem{Status: 403, Code: api.CodeForbidden, Title: "Forbidden", Detail: detail}}
}

// forbidden is the answer to a caller that has none of the roles.
func forbidden(roles Role) *api.Problem {
	var words []string
	for _, w := range roleWords {
		if w.role == Admin || roles&w.role != 0 {
			words = append(words, w.word)
		}
	}
	return &api.Problem{
		Status: 403, Code: api.CodeForbidden, Title: "Forbidden",
		Detail: "these credentials do not allow this call: their line in the manager's file must have one of the words " + strings.Join(words, ", "),
	}
}

// maxCertificates bounds the lines of a file of certificates.
const maxCertificates = 1024

// parseCertificate reads a line of a file of certificates, CN=NAME WORD... or SAN=NAME WORD... A name with spaces
// stands in double quotes. name has the prefix.
func parseCertificate(line string) (name string, r rights, ok bool) {
	prefix, rest, found := strings.Cut(line, "=")
	if !found || prefix != "CN" && prefix != "SAN" {
		return "", r, false
	}
	value, words := rest, ""
	if strings.HasPrefix(rest, `"`) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return "", r, false
		}
		value, _ = strconv.Unquote(quoted) // of a QuotedPrefix: valid
		if words = rest[len(quoted):]; words != "" && words[0] != ' ' && words[0] != '\t' {
			return "", r, false
		}
	} else if i := strings.IndexAny(rest, " \t"); i >= 0 {
		value, words = rest[:i], rest[i:]
	}
	fields := strings.Fields(words)
	if value == "" || len(fields) == 0 {
		return "", r, false
	}
	r, ok = parseWords(fields)
	return prefix + "=" + value, r, ok
}

// LoadCertificates replaces what client certificates may do by what a file says. Without such a file a certificate
// of the CA may do everything that its token may. On error the old rights stay.
func (a *Auth) LoadCertificates(file string) error {
	all := make(map[string]*rights)
	err := eachLine("client roles file", file, func(line string) error {
		name, r, ok := parseCertificate(line)
		if !ok {
			return errors.New("must be CN=NAME or SAN=NAME, a name with spaces in double quotes, followed by one or more of the words " + RoleWords())
		}
		if other := all[name]; other != nil && !other.equal(&r) {
			return errors.New("the same name is there with other words")
		}
		r.owner = ownerOf(r.roles, "certificate", name)
		all[name] = &r
		return nil
	})
	if err != nil {
		return err
	}
	if len(all) == 0 || len(all) > maxCertificates {
		return errors.New("client roles file " + file + ": must hold 1 to " + strconv.Itoa(maxCertificates) + " names, one per line")
	}
	a.certificates.Store(&all)
	return nil
}

// certificateRights are what a certificate may do: what the lines of all of its names say, together. Its owner is that of
// the first of its names that has one: of the CN, then of the SANs in their order in the certificate.
func certificateRights(all map[string]*rights, cert *x509.Certificate) *rights {
	names := []string{"CN=" + cert.Subject.CommonName}
	for _, list := range [...][]string{cert.DNSNames, cert.EmailAddresses} {
		for _, name := range list {
			names = append(names, "SAN="+name)
		}
	}
	for _, u := range cert.URIs {
		names = append(names, "SAN="+u.String())
	}
	for _, ip := range cert.IPAddresses {
		names = append(names, "SAN="+ip.String())
	}
	var sum *rights
	for _, name := range names {
		switch r := all[name]; {
		case r == nil:
		case sum == nil:
			sum = r
		default:
			sum = &rights{roles: sum.roles | r.roles, functions: slices.Concat(sum.functions, r.functions), owner: cmp.Or(sum.owner, r.owner)}
		}
	}
	if sum == nil {
		return &rights{}
	}
	return sum
}
