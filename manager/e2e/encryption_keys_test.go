package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// TestManagerThatLacksTheKey: a manager that runs without the key with which another manager of the store encrypts
// answers an error for all that it cannot read. It gives no key and no job away, forgets nothing of a peer's feed or of
// its own, deletes nothing, and says what to do.
func TestManagerThatLacksTheKey(t *testing.T) {
	t.Parallel()
	for _, name := range deep.Keys(t, media) {
		start := media[name]
		for what, lacks := range map[string][]string{"no file": nil, "older file": {"--encryption-key-file", keyFile(t, "k1")}} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				testManagerThatLacksTheKey(t, start(t).args, lacks)
			})
		}
	}
}

func testManagerThatLacksTheKey(t *testing.T, store, lacks []string) {
	peer := startManager(t, "--store", "memory", "--origin", "dc2")
	store = append([]string{"--origin", "dc1", "--committed-ttl-seconds", "3600", "--pending-ttl-seconds", "3600", "--unknown-ttl-seconds", "3600"}, store...)
	pulling := []string{"--peer", "dc2=http://" + peer.addr["api"], "--admin", "127.0.0.1:0"}
	older := startManager(t, append(append(pulling, lacks...), store...)...)
	keys := []string{"--encryption-key-file", keyFile(t, "k1", "k2")}
	newer := startManager(t, append(keys, store...)...)
	takesKeys(t, older)
	url := func(p *process) string { return "http://" + p.addr["api"] }

	useSecrets(t, newer.addr["api"])
	mustAnswer(t, 201, "POST", url(newer)+"/v1/ledger/reserve", `{"key":"running","token":"t"}`)
	const locked = `{"function":"held","payload":"4242-held","key":"invoice","dedup":{"strategy":"until_executed"}}`
	var held, active claimedJob
	if err := json.Unmarshal([]byte(mustAnswer(t, 202, "POST", url(newer)+"/v1/jobs", locked)), &held); err != nil {
		t.Fatal(err)
	}
	mustAnswer(t, 202, "POST", url(newer)+"/v1/jobs", `{"function":"active","payload":1,"id":"active"}`)
	var claimed struct{ Jobs []claimedJob }
	if err := json.Unmarshal([]byte(mustAnswer(t, 200, "POST", url(newer)+"/v1/jobs/claim", `{"worker":"w","functions":["active"],"lease_ms":600000}`)), &claimed); err != nil || len(claimed.Jobs) != 1 {
		t.Fatal(claimed, err)
	}
	active = claimed.Jobs[0]

	id := "k2"
	refused := func(method, path, body string) {
		t.Helper()
		status, _, answer := do(t, method, url(older)+path, body)
		if status != 500 || !strings.Contains(answer, `"code":"record-unreadable"`) || !strings.Contains(answer, `encrypted under the key \"`+id+`\"`) || strings.Contains(answer, "4242-") {
			t.Errorf("%s %s %s: %d %s", method, path, body, status, answer)
		}
	}
	const result = `"result":{"status":201,"body":"aGk="}`
	for _, key := range []string{"pay", "no", "running"} {
		for call, more := range map[string]string{
			"reserve": `"fingerprint":"4242-fingerprint"`, "commit": result, "reject": result, "release": `"x":1`, "renew": `"pending_ttl_ms":60000`, "unknown": `"unknown_ttl_ms":60000`,
		} {
			more = strings.TrimPrefix(","+more, `,"x":1`)
			refused("POST", "/v1/ledger/"+call, fmt.Sprintf(`{"key":%q,"token":"t"%s}`, key, more))
		}
		refused("POST", "/v1/ledger/lookup", fmt.Sprintf(`{"key":%q}`, key))
		refused("GET", "/v1/ledger/entries/"+key, "")
		refused("DELETE", "/v1/ledger/entries/"+key, "")
	}
	refused("POST", "/v1/ledger/entries/running/resolve", `{"as":"released"}`)
	refused("GET", "/v1/ledger/changes?origin=dc1&after=&wait_ms=0", "")
	refused("GET", "/v1/ledger/changes?origin=dc1&after=&wait_ms=0&from_ms=0&to_ms=4102444800000", "")
	refused("POST", "/v1/jobs", locked)
	refused("POST", "/v1/jobs", `{"function":"held","payload":2,"key":"invoice"}`)
	refused("POST", "/v1/jobs", `{"function":"held","payload":2,"id":"small"}`)
	for _, job := range []string{"small", "large", "batched", held.ID} {
		refused("GET", "/v1/jobs/"+job, "")
		refused("POST", "/v1/jobs/"+job+"/cancel", "{}")
		refused("POST", "/v1/jobs/"+job+"/retry", "{}")
	}
	refused("POST", "/v1/jobs/active/heartbeat", fmt.Sprintf(`{"lease_token":%q}`, active.Lease.Token))
	refused("POST", "/v1/jobs/active/finish", fmt.Sprintf(`{"lease_token":%q,"status":"complete"}`, active.Lease.Token))
	if answer := mustAnswer(t, 200, "POST", url(older)+"/v1/jobs/batch", `{"items":[{"function":"many","payload":"4242-keyed-payload","id":"keyed","idempotency_key":"once"}]}`); !strings.Contains(answer, "record-unreadable") {
		t.Errorf("the batch: %s", answer)
	}
	if answer := mustAnswer(t, 200, "POST", url(older)+"/v1/jobs/claim", `{"worker":"w","limit":10}`); answer != `{"jobs":[]}` {
		t.Errorf("claimed: %s", answer)
	}
	refused("GET", "/v1/logs/payments/entries?after=0", "")
	refused("GET", "/v1/logs/payments/entries/by-id/4242-log-id", "")
	if answer := mustAnswer(t, 200, "POST", url(older)+"/v1/logs/payments/entries", entryOfSecrets()); !strings.Contains(answer, `"duplicate":true`) {
		t.Errorf("the entry again: %s", answer)
	}
	for _, path := range []string{"/v1/ledger/entries", "/v1/jobs", "/v1/ledger/conflicts", "/v1/functions"} {
		if answer := mustAnswer(t, 200, "GET", url(older)+path, ""); strings.Contains(answer, "4242-") {
			t.Errorf("%s: %s", path, answer)
		}
	}
	for _, path := range []string{"/ui/", "/ui/ledger", "/ui/entry?key=pay", "/ui/jobs", "/ui/jobs/small", "/ui/conflicts", "/ui/unreadable", "/ui/logs", "/ui/logs/payments"} {
		if status, body := get(t, older.addr["admin"], path); strings.Contains(body, "4242-") || !strings.Contains(body, "<html") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	// What another manager can read is not deleted.
	for _, record := range []string{"ledger/0:pay", "jobs/small"} {
		collection, key, _ := strings.Cut(record, "/")
		path := "/v1/unreadable/" + collection + "/" + base64.RawURLEncoding.EncodeToString([]byte(key))
		if answer := mustAnswer(t, 409, "DELETE", url(older)+path, ""); !strings.Contains(answer, id) {
			t.Errorf("delete %s: %s", record, answer)
		}
	}

	// The peer's outcome of a key that is reserved here waits for a manager that can read the reservation.
	mustAnswer(t, 201, "POST", url(peer)+"/v1/ledger/reserve", `{"key":"running","token":"theirs"}`)
	mustAnswer(t, 200, "POST", url(peer)+"/v1/ledger/commit", `{"key":"running","token":"theirs","result":{"status":201,"body":"dGhlaXJz"}}`)
	waitFor(t, "the import fails", func() bool {
		_, answer := get(t, older.addr["api"], "/v1/peers")
		return strings.Contains(answer, "encrypted under the key")
	})
	if text := older.stderr.String(); strings.Contains(text, "4242-") || !strings.Contains(text, "other managers encrypt") {
		t.Errorf("the log: %s", text)
	}
	older.kill()
	refusedStart(t, fmt.Sprintf("%q", id), append(lacks, store...)...)

	startManager(t, append(append(keys, pulling...), store...)...)
	waitFor(t, "the peer's outcome is here", func() bool {
		_, answer := post(t, newer.addr["api"], "/v1/ledger/reserve", `{"key":"running","token":"retry"}`)
		return strings.Contains(answer, `"body":"dGhlaXJz"`)
	})
	checkSecrets(t, newer.addr["api"])
	for job, state := range map[string]string{held.ID: "queued", "active": "active", "batched": "queued", "keyed": "queued"} {
		if answer := mustAnswer(t, 200, "GET", url(newer)+"/v1/jobs/"+job, ""); !strings.Contains(answer, `"state":"`+state+`"`) {
			t.Errorf("the job %s: %s", job, answer)
		}
	}
}
