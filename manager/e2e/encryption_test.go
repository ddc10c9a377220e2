package e2e

import (
	"bytes"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// keyFile writes a key file with a key for each id.
func keyFile(t testing.TB, ids ...string) string {
	t.Helper()
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&b, "%s:%s\n", id, testKey(id))
	}
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// testKey is the key that a test has for an id.
func testKey(id string) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%-32.32s", "the key "+id))
}

// rotation is the arguments of start number n of a manager: without a key at first, then with one of a few keys after
// the other. All starts have all keys.
func rotation(t testing.TB, n int) []string {
	if n == 0 {
		return nil
	}
	ids := []string{"k0", "k1", "k2"}
	n %= len(ids)
	return []string{"--encryption-key-file", keyFile(t, slices.Concat(ids[n+1:], ids[:n+1])...)}
}

// What callers send and get here, and nothing else may show. Each kind of value has a word of its own.
var secrets = []string{
	"4242-answer", "4242-rejection", "4242-small-payload", "4242-large-payload", "4242-small-result", "4242-large-result", "4242-error",
	"4242-batch-payload", "4242-keyed-payload", "4242-entry", "4242-log-id", "4242-property",
}

// internals are what callers send and the store keeps, and no answer shows.
var internals = []string{"4242-token", "4242-fingerprint"}

// ofPeers are outcomes of another data centre.
var ofPeers = []string{"4242-imported", "4242-conflict"}

// large is a JSON string with a secret in it that gets a record of its own.
func large(secret string) string { return fmt.Sprintf("%q", strings.Repeat("-", 600)+secret) }

// useSecrets makes a manager store all secrets.
func useSecrets(t *testing.T, addr string) {
	t.Helper()
	ok := func(path, body string) string {
		t.Helper()
		status, answer := post(t, addr, path, body)
		if status < 200 || status > 299 {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
		return answer
	}
	ok("/v1/ledger/reserve", `{"key":"pay","token":"4242-token","fingerprint":"4242-fingerprint"}`)
	ok("/v1/ledger/commit", fmt.Sprintf(`{"key":"pay","token":"4242-token","result":{"status":201,"headers":[["x-card","4242-answer"]],"body":%q}}`,
		base64.StdEncoding.EncodeToString([]byte("4242-answer"))))
	ok("/v1/ledger/reserve", `{"key":"no","token":"t"}`)
	ok("/v1/ledger/reject", fmt.Sprintf(`{"key":"no","token":"t","ttl_ms":3600000,"result":{"status":402,"body":%q}}`,
		base64.StdEncoding.EncodeToString([]byte("4242-rejection"))))
	if answer := ok("/v1/jobs/batch", `{"items":[{"function":"many","id":"batched","payload":"4242-batch-payload"},
		{"function":"many","id":"keyed","payload":"4242-keyed-payload","idempotency_key":"once"}]}`); strings.Count(answer, `"status":202`) != 2 {
		t.Fatal(answer)
	}
	for id, payload := range map[string]string{"small": `"4242-small-payload"`, "large": large("4242-large-payload"), "failing": `1`} {
		ok("/v1/jobs", fmt.Sprintf(`{"function":%q,"id":%q,"payload":%s,"max_attempts":1}`, id, id, payload))
		var answer struct{ Jobs []claimedJob }
		if err := json.Unmarshal([]byte(ok("/v1/jobs/claim", fmt.Sprintf(`{"worker":"w","functions":[%q]}`, id))), &answer); err != nil || len(answer.Jobs) != 1 {
			t.Fatal(answer, err)
		}
		end := map[string]string{"small": `"status":"complete","result":"4242-small-result"`, "large": `"status":"complete","result":` + large("4242-large-result"),
			"failing": `"status":"failed","error":"4242-error"`}[id]
		ok("/v1/jobs/"+id+"/finish", fmt.Sprintf(`{"lease_token":%q,%s}`, answer.Jobs[0].Lease.Token, end))
	}
	mustAnswer(t, 201, "PUT", "http://"+addr+"/v1/logs/payments", `{}`)
	ok("/v1/logs/payments/entries", entryOfSecrets())
}

// entryOfSecrets is an entry of a log.
func entryOfSecrets() string {
	return fmt.Sprintf(`{"id":"4242-log-id","payload":%q,"properties":{"card":"4242-property"}}`, base64.StdEncoding.EncodeToString([]byte("4242-entry")))
}

// allSecrets is what found returns where nothing is encrypted.
func allSecrets() []string { return slices.Sorted(slices.Values(slices.Concat(secrets, internals))) }

// checkSecrets fails unless a manager gives all secrets back.
func checkSecrets(t *testing.T, addr string) {
	t.Helper()
	var all strings.Builder
	for _, key := range []string{"pay", "no"} {
		status, replay := post(t, addr, "/v1/ledger/reserve", fmt.Sprintf(`{"key":%q,"token":"retry"}`, key))
		if status != 200 {
			t.Errorf("the replay: %d %s", status, replay)
		}
		all.WriteString(replay)
	}
	for _, path := range []string{"/v1/jobs/small", "/v1/jobs/large", "/v1/jobs/failing", "/v1/jobs/batched", "/v1/jobs/keyed", "/v1/logs/payments/entries?after=0"} {
		status, body := get(t, addr, path)
		if status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
		all.WriteString(body)
	}
	for _, secret := range secrets {
		encoded := base64.StdEncoding.EncodeToString([]byte(secret))
		if !strings.Contains(all.String(), secret) && !strings.Contains(all.String(), encoded) {
			t.Errorf("%s is not there: %s", secret, all.String())
		}
	}
}

// forms are the ways in which a file may have a text: as it is, in hex, and in base64 at any position of a longer text.
func forms(text string) [][]byte {
	out := [][]byte{[]byte(text), []byte(hex.EncodeToString([]byte(text))), []byte(strings.ToUpper(hex.EncodeToString([]byte(text))))}
	for before := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("-", before) + text))
		first, last := (before*8+5)/6, (before+len(text))*8/6 // characters that no neighbour changes
		out = append(out, []byte(encoded[first:last]))
	}
	return out
}

// found are the secrets that files below dirs have, in any form.
func found(t *testing.T, dirs ...string) (all []string) {
	t.Helper()
	files := 0
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			b, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a server removed it meanwhile
			}
			files++
			b = bytes.TrimRight(b, "\x00") // a log reserves much more than it has
			for _, secret := range slices.Concat(secrets, internals, ofPeers) {
				if !slices.Contains(all, secret) && slices.ContainsFunc(forms(secret), func(form []byte) bool { return bytes.Contains(b, form) }) {
					all = append(all, secret)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < len(dirs) {
		t.Fatalf("%d files in %v", files, dirs)
	}
	slices.Sort(all)
	return all
}

// TestEncryption stores payments on the engines with files, encrypted and not, and looks for them in all that the
// manager wrote.
func TestEncryption(t *testing.T) {
	t.Parallel()
	everything := allSecrets()
	each(t, deep.Cells(t, []string{"wal", "sqlite"}), func(t *testing.T, engine string) {
		dir, bucket := t.TempDir(), t.TempDir()
		args := []string{"--store", engine, "--data-dir", dir, "--committed-ttl-seconds", "3600"}
		dirs := []string{dir}
		if engine == "wal" {
			args = append(args, "--cache-bytes", "1048576", "--ship-to", "file://"+bucket, "--ship-interval-seconds", "0.05")
			dirs = append(dirs, bucket)
		}
		with := func(file string) []string { return append([]string{"--encryption-key-file", file}, args...) }
		// Without a key everything is there: the search finds what it looks for.
		p := startManager(t, args...)
		useSecrets(t, p.addr["api"])
		p.kill()
		if got := found(t, dir); !slices.Equal(got, everything) {
			t.Errorf("without encryption the search finds %q", got)
		}

		// The same store with a key: once the values are stored again, nothing is there.
		p = startManager(t, with(keyFile(t, "k1"))...)
		waitFor(t, "nothing is plain", func() bool { return strings.Contains(p.stderr.String(), `"no_longer_in_use":[""]`) })
		if got := found(t, dir); len(got) > 0 {
			t.Errorf("after the start with a key the files have %q", got)
		}
		p.kill()
		if got := found(t, dir); len(got) > 0 {
			t.Errorf("after the kill the files have %q", got)
		}

		// A store that is encrypted from its beginning.
		for _, d := range dirs {
			entries, _ := os.ReadDir(d)
			for _, e := range entries {
				if err := os.RemoveAll(filepath.Join(d, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		p = startManager(t, with(keyFile(t, "k1"))...)
		useSecrets(t, p.addr["api"])
		checkSecrets(t, p.addr["api"])
		if code := p.stop(t); code != 0 { // which ships what is new
			t.Errorf("exit code %d: %s", code, p.stderr)
		}
		if got := found(t, dirs...); len(got) > 0 {
			t.Errorf("the files have %q", got)
		}
		if text := p.stderr.String(); strings.Contains(text, testKey("k1")) || strings.Contains(text, "4242-") {
			t.Errorf("the log has a key or a secret: %s", text)
		}

		other := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(other, []byte("k1:"+testKey("other")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		refusedStart(t, `oncegate serve: --encryption-key-file: the store has values that are encrypted under the key "k1"`, args...)
		refusedStart(t, `its key "k1" is not the one`, with(other)...)
		refusedStart(t, `lacks the key "k1"`, with(keyFile(t, "k2"))...)

		// Another key: everything is stored again, and then the first one can go.
		p = startManager(t, append(with(keyFile(t, "k1", "k2")), "--admin", "127.0.0.1:0")...)
		checkSecrets(t, p.addr["api"])
		waitFor(t, "the values are put again", func() bool {
			return strings.Contains(p.stderr.String(), `"all values are under the current key"`)
		})
		if code := p.stop(t); code != 0 {
			t.Errorf("exit code %d: %s", code, p.stderr)
		}
		p = startManager(t, with(keyFile(t, "k2"))...)
		checkSecrets(t, p.addr["api"])
		if code := p.stop(t); code != 0 {
			t.Errorf("exit code %d: %s", code, p.stderr)
		}
		refusedStart(t, `lacks the key "k2"`, with(keyFile(t, "k1"))...)
		if got := found(t, dirs...); len(got) > 0 {
			t.Errorf("the files have %q", got)
		}
		if engine == "wal" {
			testEncryptedTools(t, dir, bucket, keyFile(t, "k2"))
		} else {
			testSQLiteBackup(t, dir, keyFile(t, "k2"))
		}
	})
}

// TestEncryptionOnEveryEngine: what one manager encrypted, the next one reads with the key, puts again under another one,
// and does not start without.
func TestEncryptionOnEveryEngine(t *testing.T) {
	t.Parallel()
	eachKept(t, func(t *testing.T, store []string) {
		with := func(ids ...string) []string {
			return append([]string{"--committed-ttl-seconds", "3600", "--encryption-key-file", keyFile(t, ids...)}, store...)
		}
		p := startManager(t, with("k1")...)
		useSecrets(t, p.addr["api"])
		p.kill()
		refusedStart(t, `encrypted under the key "k1"`, store...)
		p = startManager(t, with("k1", "k2")...)
		waitFor(t, "the values are put again", func() bool {
			return strings.Contains(p.stderr.String(), `"all values are under the current key"`)
		})
		checkSecrets(t, p.addr["api"])
		p.kill()
		refusedStart(t, `lacks the key "k2"`, with("k1")...)
	})
}

// testSQLiteBackup makes a backup as users of SQLite do, looks into it, and starts a manager on it.
func testSQLiteBackup(t *testing.T, dir, keys string) {
	db, err := sql.Open("sqlite", filepath.Join(dir, "oncegate.db"))
	if err != nil {
		t.Fatal(err)
	}
	backup := t.TempDir()
	_, err = db.ExecContext(t.Context(), "VACUUM INTO ?", filepath.Join(backup, "oncegate.db"))
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if got := found(t, backup); len(got) > 0 {
		t.Errorf("the backup has %q", got)
	}
	p := startManager(t, "--store", "sqlite", "--data-dir", backup, "--encryption-key-file", keys)
	checkSecrets(t, p.addr["api"])
	p.kill()
}

// testEncryptedTools looks at an encrypted directory with and without its key, and restores it from its copy.
func testEncryptedTools(t *testing.T, dir, bucket, keys string) {
	code, out := oncegate(t, "wal", "dump", "--data-dir", dir, "--values")
	if code != 0 || dumps(out, "4242-answer") || !strings.Contains(out, `"encryption_key":"k2"`) {
		t.Errorf("dump without the key: %d %s", code, out)
	}
	if code, out = oncegate(t, "wal", "dump", "--data-dir", dir, "--values", "--encryption-key-file", keys); code != 0 || !dumps(out, "4242-answer") || !strings.Contains(out, `"state":"committed"`) {
		t.Errorf("dump with the key: %d %s", code, out)
	}
	if code, out = oncegate(t, "wal", "dump", "--data-dir", dir, "--values", "--encryption-key-file", keyFile(t, "k9")); code != 0 || dumps(out, "4242-answer") || !strings.Contains(out, `"unreadable":`) {
		t.Errorf("dump with another key: %d %s", code, out)
	}
	if code, out = oncegate(t, "wal", "verify", "--data-dir", dir); code != 0 || !strings.Contains(out, "are encrypted and were not looked into") || strings.Contains(out, "unreadable") {
		t.Errorf("verify without the key: %d %s", code, out)
	}
	if code, out = oncegate(t, "wal", "verify", "--data-dir", dir, "--encryption-key-file", keys); code != 0 || strings.Contains(out, "note:") {
		t.Errorf("verify with the key: %d %s", code, out)
	}
	if code, out = oncegate(t, "wal", "verify", "--data-dir", dir, "--encryption-key-file", filepath.Join(dir, "none")); code != 2 {
		t.Errorf("verify with a file that is not there: %d %s", code, out)
	}
	// The bucket may still have records under the first key: those that were shipped since its last snapshot.
	for _, with := range [][]string{nil, {"--encryption-key-file", keyFile(t, "k1", "k2")}} {
		restored := filepath.Join(t.TempDir(), "restored")
		if code, out = oncegate(t, append([]string{"restore", "--from", "file://" + bucket, "--data-dir", restored}, with...)...); code != 0 || !strings.Contains(out, "first 1h1m0s") {
			t.Errorf("restore %v: %d %s", with, code, out)
		}
		if got := found(t, restored); len(got) > 0 {
			t.Errorf("the restored files have %q", got)
		}
		p := startManager(t, "--data-dir", restored, "--encryption-key-file", keys)
		checkSecrets(t, p.addr["api"])
		p.kill()
	}
}

// TestRestoreWithAnotherKey: a key file that cannot read the records makes no directory, which no manager could use.
func TestRestoreWithAnotherKey(t *testing.T) {
	t.Parallel()
	bucket := filepath.Join(t.TempDir(), "bucket")
	p := startManager(t, "--data-dir", t.TempDir(), "--ship-to", "file://"+bucket, "--ship-interval-seconds", "0.05", "--encryption-key-file", keyFile(t, "k1"))
	if status, body := post(t, p.addr["api"], "/v1/ledger/reserve", `{"key": "a", "token": "00112233445566778899aabbccddeeff"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if code := p.stop(t); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}
	for id, want := range map[string]string{"k9": `lacks the keys ["k1"]`, "k1": "opens none"} {
		file, dir := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "restored")
		if err := os.WriteFile(file, fmt.Appendf(nil, "%s:%s\n", id, testKey("other")), 0o600); err != nil {
			t.Fatal(err)
		}
		restore := []string{"restore", "--from", "file://" + bucket, "--data-dir", dir, "--encryption-key-file"}
		if code, out := oncegate(t, append(restore, file)...); code != 1 || !strings.Contains(out, want) {
			t.Errorf("with another key %s: %d %s", id, code, out)
		}
		verify := []string{"ship", "verify", "--from", "file://" + bucket, "--encryption-key-file"}
		if code, out := oncegate(t, append(verify, file)...); code != 1 || !strings.Contains(out, want) {
			t.Errorf("verify with another key %s: %d %s", id, code, out)
		}
		if code, out := oncegate(t, append(verify, keyFile(t, "k1"))...); code != 0 {
			t.Errorf("verify with the right key: %d %s", code, out)
		}
		if code, out := oncegate(t, append(restore, keyFile(t, "k1"))...); code != 0 {
			t.Errorf("with the right key: %d %s", code, out)
		}
	}
}

// dumps reports whether a dump's values have a text.
func dumps(out, text string) bool {
	for line := range strings.Lines(out) {
		var record struct{ Changes []struct{ Value []byte } }
		if json.Unmarshal([]byte(line), &record) != nil {
			continue
		}
		for _, c := range record.Changes {
			if bytes.Contains(c.Value, []byte(text)) {
				return true
			}
		}
	}
	return false
}
