package settings

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/peers"
)

func TestPeers(t *testing.T) {
	s, err := Parse(from(map[string]string{"ONCEGATE_ORIGIN": "dc1"}), []string{"--data-dir=d", "--peer", "dc2=http://127.0.0.1:1/", "--peer=dc3=https://h.example"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Peers.Origin != "dc1" || s.Ledger.Origin != "dc1" || len(s.Peers.Peers) != 2 || s.Peers.Peers[0] != (peers.Peer{Name: "dc2", URL: "http://127.0.0.1:1"}) {
		t.Errorf("%+v", s.Peers)
	}
	for args, want := range map[string]string{
		"--peer dc2=http://h":                                  `--peer dc2=http://h: needs --origin`,
		"--origin dc1 --peer dc1=http://h":                     `--peer dc1=http://h: must be another data centre than --origin`,
		"--origin dc1 --peer dc2=http://h --peer dc2=http://i": `--peer "dc2=http://i": "dc2" is there twice`,
		"--origin dc1 --peer dc2":                              `--peer "dc2": must be NAME=URL`,
		"--origin dc1 --peer dc2=ftp://h":                      `--peer "dc2=ftp://h": must be NAME=URL`,
		"--origin dc1 --peer dc2=http://u:p@h":                 `must be NAME=URL`,
		"--origin dc1 --peer dc2=http://h/path":                `must be NAME=URL`,
		"--origin dc1 --peer dc2=http://h:65536":               `the port "65536" must be 1 to 65535`,
		"--origin dc1 --peer a,b=http://h":                     `must be 1 to 32 letters, digits and _ . -`,
		"--origin d/1":                                         `--origin "d/1": must be 1 to 32 letters, digits and _ . -`,
		"--origin dc1 --peer-ca f":                             `--peer-ca "f": needs --peer`,
		"--origin dc1 --peer dc2=https://h --peer-cert f":      `--peer-cert and --peer-key: must be given together`,
		"--origin dc1 --compare-interval-seconds 0":            `--compare-interval-seconds "0": must be`,
		"--origin dc1 --changes-kept 1":                        `--changes-kept "1": must be`,
	} {
		if _, err := Parse(from(nil), append([]string{"--data-dir=d"}, strings.Fields(args)...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
