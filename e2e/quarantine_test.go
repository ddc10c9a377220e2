package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
)

// quarantined returns an error while a manager takes no new keys.
func (s *stack) quarantined(addr string) error {
	text, err := fetch("http://" + addr + "/v1/ledger/stats")
	if err == nil && bytes.Contains(text, []byte(`"quarantine_ms"`)) {
		err = fmt.Errorf("%s", text)
	}
	return err
}

// endQuarantine has a manager take new keys though its peers cannot say whether they remember an earlier ledger.
func (s *stack) endQuarantine(t *testing.T, addr string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+addr+"/v1/ledger/quarantine", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
}
