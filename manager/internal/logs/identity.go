package logs

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// Hash is what the window keeps of an id: 128 bits, keyed, so that nobody can choose two ids
// with the same one.
type Hash [16]byte

// HashKey is drawn when a log is made.
type HashKey [32]byte

func (k *HashKey) hash(kind byte, s string) (h Hash) {
	b := make([]byte, 0, 320)
	b = append(append(append(b, k[:]...), kind), s...)
	sum := sha256.Sum256(b)
	copy(h[:], sum[:])
	return h
}

// Digest is what the window keeps of a payload.
type Digest [16]byte

func digestOf(payload []byte) (d Digest) {
	sum := sha256.Sum256(payload)
	copy(d[:], sum[:])
	return d
}

// deriveID makes an entry's id from its payload: the MD5 in hexadecimal digits, or the SHA-256
// of the log's name and the payload, each after its length as 8 bytes, most significant first.
func deriveID(d Derive, log string, payload []byte) string {
	if d == DeriveMD5 {
		sum := md5.Sum(payload)
		return hex.EncodeToString(sum[:])
	}
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(log)))
	h.Write(n[:])
	h.Write([]byte(log))
	binary.BigEndian.PutUint64(n[:], uint64(len(payload)))
	h.Write(n[:])
	h.Write(payload)
	return hex.EncodeToString(h.Sum(nil))
}

// structuredID has the parts of an id {client}:{sequence}:{nonce}.
type structuredID struct {
	client, nonce string // at least one byte each; the client may contain colons
	sequence      uint64 // at most math.MaxInt64
}

// nonceChars is the length of the nonces that clients draw, as hexadecimal digits in lower case. Others are taken as they are.
const nonceChars = 16

// parseStructured reads {client}:{sequence}:{nonce}. Logs take any nonce, gates only that of an api.StructuredKey; the
// sequence has 63 bits. The error is a *api.FieldError.
func parseStructured(id string) (structuredID, error) {
	end := strings.LastIndexByte(id, ':')
	start := strings.LastIndexByte(id[:max(end, 0)], ':')
	if start > 0 && end+1 < len(id) {
		s := structuredID{client: id[:start], nonce: id[end+1:]}
		digits := id[start+1 : end]
		n, err := strconv.ParseUint(digits, 10, 63)
		if err == nil && strconv.FormatUint(n, 10) == digits { // one spelling per number
			s.sequence = n
			return s, nil
		}
	}
	return structuredID{}, &api.FieldError{Field: "id", Value: shorten(id), Allowed: "must be {client}:{sequence}:{nonce} in a log with structured ids, " +
		"with a sequence of at most 9223372036854775807 without leading zeros and a nonce without colons"}
}

// hash names client and nonce. The two forms never have the same text: a nonce has no colon.
func (s *structuredID) hash(k *HashKey) Hash {
	if len(s.nonce) == nonceChars && strings.Trim(s.nonce, "0123456789abcdef") == "" {
		return k.hash('c', s.nonce+s.client)
	}
	return k.hash('n', s.nonce+":"+s.client)
}

// prepared is an item with all that can be known of it without the log's state.
type prepared struct {
	Item
	hash   Hash // of the id, or of client and nonce
	digest Digest
	seq    uint64 // of a structured id
}

// prepare resolves the item's id and computes what judging needs, outside of any lock.
func (s *State) prepare(it Item) (p prepared) {
	p.Item = it
	if p.Err == nil {
		p.Err = p.check()
	}
	if p.Err != nil {
		return p
	}
	if p.Derive != NoDerive {
		p.ID = deriveID(p.Derive, s.name, p.Payload)
	}
	if s.identity == Structured {
		id, err := parseStructured(p.ID)
		if err != nil {
			p.Err = err
			return p
		}
		p.seq = id.sequence
		p.hash = id.hash(&s.key)
		p.digest = digestOf(p.Payload)
	} else if p.ID != "" {
		p.hash = s.key.hash('i', p.ID)
		p.digest = digestOf(p.Payload)
	}
	return p
}

// check looks at what the item says, without the log.
func (p *prepared) check() error {
	switch {
	case len(p.ID) > MaxIDBytes:
		return &api.FieldError{Field: "id", Value: shorten(p.ID), Allowed: fmt.Sprintf("must be 1 to %d bytes", MaxIDBytes)}
	case p.ID != "" && p.Derive != NoDerive:
		return &api.FieldError{Field: "derive", Allowed: "must not be given together with id"}
	case len(p.Payload) > MaxPayloadBytes:
		return refusal(413, api.CodeTooLarge, "Too large", "payload: has %d bytes, must have at most %d", len(p.Payload), MaxPayloadBytes)
	case p.Writer == "" && p.Epoch != 0:
		return &api.FieldError{Field: "epoch", Value: strconv.FormatUint(p.Epoch, 10), Allowed: "must come with writer"}
	case p.Writer != "" && p.Epoch == 0:
		return &api.FieldError{Field: "epoch", Allowed: "must come with writer, and be one that POST .../writers gave"}
	case len(p.Writer) > MaxWriterBytes:
		return CheckWriter(p.Writer)
	case len(p.Properties) > MaxProperties:
		return &api.FieldError{Field: "properties", Value: strconv.Itoa(len(p.Properties)), Allowed: fmt.Sprintf("must have at most %d members", MaxProperties)}
	}
	n := 0
	for i, pr := range p.Properties {
		n += len(pr.Name) + len(pr.Value)
		if pr.Name == "" || i > 0 && pr.Name <= p.Properties[i-1].Name {
			return &api.FieldError{Field: "properties", Value: shorten(pr.Name), Allowed: "must have names that are not empty, each once"}
		}
	}
	if n > MaxPropertiesBytes {
		return &api.FieldError{Field: "properties", Value: strconv.Itoa(n) + " bytes", Allowed: fmt.Sprintf("must have at most %d bytes of names and values", MaxPropertiesBytes)}
	}
	return nil
}
