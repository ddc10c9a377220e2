package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3" // for protojson
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"
)

// Retries of signed requests match with the filter and the rules of docs/clients.md, although each has another signature. Other
// callers and operations do not share keys with them.
func TestSignedRequestsMatch(t *testing.T) {
	page, err := os.ReadFile("../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(language string) []byte {
		_, text, _ := strings.Cut(string(page), "```"+language+"\n")
		text, _, _ = strings.Cut(text, "```")
		return []byte(text)
	}
	var filters []json.RawMessage
	if err := yaml.Unmarshal(block("yaml"), &filters); err != nil || len(filters) != 1 {
		t.Fatalf("%v: %d filters", err, len(filters))
	}
	filter := new(hcmv3.HttpFilter)
	if err := protojson.Unmarshal(filters[0], filter); err != nil {
		t.Fatal(err)
	}
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		plugin := map[string]any{"anonymous": "refuse"}
		if err := json.Unmarshal(block("json"), &plugin); err != nil {
			t.Fatal(err)
		}
		p := newSurface(t, target, "body", plugin, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, "for ", r.Header.Get("Authorization"))
		}, func(hcm *hcmv3.HttpConnectionManager) error {
			hcm.HttpFilters = append([]*hcmv3.HttpFilter{filter}, hcm.GetHttpFilters()...)
			return nil
		}).proxies[0]
		signed := func(c call, caller string, try int) call {
			c.headers = map[string]string{
				"Authorization": fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/20261127/eu-west-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=%064x", caller, try),
				"X-Amz-Target":  "DynamoDB_20120810.TransactWriteItems", "Amz-Sdk-Invocation-Id": "5ca01131-45f5-4875-95b1-80096d0f987b",
				"Amz-Sdk-Request": fmt.Sprintf("attempt=%d; max=3", try),
			}
			return c
		}
		for _, c := range []call{{path: "/", body: `{"ClientRequestToken": "t1"}`}, {method: "PUT", path: "/bucket/object", body: "hello"}} {
			first := wantFirst(t, p, signed(c, "AKIA1", 1), 200)
			wantReplay(t, p, signed(c, "AKIA1", 2), first)
			wantFirst(t, p, signed(c, "AKIA2", 3), 200)
			other := signed(c, "AKIA1", 4)
			if other.headers["X-Amz-Target"] = "DynamoDB_20120810.PutItem"; c.method == "" {
				wantProblem(t, p, other, 422, "fingerprint-mismatch")
			}
		}
	})
}
