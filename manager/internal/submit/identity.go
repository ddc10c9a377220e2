package submit

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// identity is the part of the ledger's scope that identifies the caller: a digest of their
// credentials.
func identity(credentials string) string {
	if credentials == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("oncegate submission\x00" + credentials))
	return "#" + hex.EncodeToString(sum[:16])
}

// fingerprint digests a submission: its fields in the order of their names, each in its canonical
// form, without the proposed id, which may differ in a retry, and without the
// key of a batch's item, so that an item is the same submission as the call with that key in its header.
func fingerprint(body []byte) string {
	type member struct{ name, raw string }
	var members []member
	gjson.ParseBytes(body).ForEach(func(k, v gjson.Result) bool {
		if name := k.String(); name != "id" && name != "idempotency_key" {
			members = append(members, member{k.String(), v.Raw})
		}
		return true
	})
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	sum := sha256.New()
	for _, m := range members {
		sum.Write([]byte(m.name + "\x00"))
		sum.Write(append(jobs.CanonicalJSON([]byte(m.raw)), 0)) // was parsed before: valid
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}
