package settings

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func configFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Flags win over the environment, the environment over the file, and the file over defaults.
func TestFileIsBehindFlagsAndEnvironment(t *testing.T) {
	name := configFile(t, "data-dir: d\nmax-entries: 1\npending-ttl-seconds: 2\nrejected-ttl-seconds: 3\nwait-for-pending: false\norigin: dc1\npeer: [dc2=http://b, dc3=http://c]\n")
	env := from(map[string]string{"IDEMPOTENCY_PENDING_TTL_SECONDS": "20", "IDEMPOTENCY_REJECTED_TTL_SECONDS": "", "IDEMPOTENCY_MAX_ENTRIES": "10"})
	s, err := Parse(env, []string{"--config", name, "--max-entries", "100"})
	if err != nil {
		t.Fatal(err)
	}
	if l := s.Ledger; l.MaxEntries != 100 || l.PendingTTL != 20*time.Second || l.RejectedTTL != 3*time.Second || l.MaxWait != -1 || l.CommittedTTL != 300*time.Second || len(s.Peers.Peers) != 2 {
		t.Errorf("%+v, %v", l, s.Peers.Peers)
	}
	if _, err := Parse(from(nil), []string{"--config", configFile(t, "# nothing\n"), "--data-dir", "d"}); err != nil {
		t.Error(err)
	}
}

// A mistake in the file names the setting, its value and what is allowed, also where a flag decides.
func TestFileIsCheckedAsFlagsAre(t *testing.T) {
	for text, want := range map[string]string{
		"max-entrys: 1":                  `line 1: "max-entrys": must be the name of a flag`,
		"config: x":                      `line 1: "config": must be the name of a flag`,
		"max-logs: 1\nmax-logs: 2":       `line 2: max-logs: must be there once`,
		"max-logs: many":                 `line 1: max-logs "many": must be a whole number from 0 to 1024`,
		"max-logs: [1]":                  `max-logs "": must be one value`,
		"max-logs:":                      `max-logs "": must be one value`,
		"wait-for-pending: yes":          `wait-for-pending "yes": must be true or false`,
		"- max-logs":                     `must be lines NAME: VALUE`,
		"max-logs: 1\n---\nmax-logs: 1":  `must be one document`,
		"max-logs: {":                    `yaml:`,
		"peer: [a=http://b, a=http://c]": `peer "a=http://c": "a" is there twice`,
	} {
		_, err := Parse(from(nil), []string{"--data-dir", "d", "--max-logs", "1", "--config", configFile(t, text)})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := Parse(from(nil), []string{"--config", "no/such"}); err == nil || !strings.Contains(err.Error(), `--config "no/such": must be a file`) {
		t.Error(err)
	}
}

func TestWordBehindABoolFlag(t *testing.T) {
	_, err := Parse(from(nil), []string{"--data-dir", "d", "--wait-for-pending", "false"})
	if err == nil || !strings.Contains(err.Error(), "write --wait-for-pending=false") {
		t.Error(err)
	}
}

func TestUnknownVariables(t *testing.T) {
	got := UnknownVariables([]string{"ONCEGATE_SHARD=a", "IDEMPOTENCY_MAX_ENTRYS=1", "ONCEGATE_SERVICE_HOST=h", "ONCEGATE_PORT_8090_TCP_ADDR=a", "ONCEGATE_LISTEN=x", "PATH=p"})
	if want := []string{"IDEMPOTENCY_MAX_ENTRYS", "ONCEGATE_LISTEN"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
