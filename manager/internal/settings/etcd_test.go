package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEtcdFiles(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for parameters, want := range map[string]string{
		"ca=" + empty + ".not":                "parameter ca: open ",
		"ca=" + empty:                         "has no certificate in PEM form",
		"cert=" + empty + "&key=" + empty:     "parameters cert and key: ",
		"cert=" + empty + "&key=/nonexistent": "parameters cert and key: open /nonexistent",
	} {
		_, err := Parse(from(nil), []string{"--store", "etcd", "--store-dsn", "https://u:secret@127.0.0.1?" + parameters})
		if err == nil || !strings.HasPrefix(err.Error(), "--store-dsn: must be addresses") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", parameters, err)
		}
	}
}
