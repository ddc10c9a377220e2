package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

// The program still measures, with the libraries that the tests have. make clients runs it with all.
func TestRecord(t *testing.T) {
	build := filepath.Join("..", "..", "build")
	for _, need := range []string{"python/stripe", "python/httpx", "gateway", "oncegate.wasm"} {
		if _, err := os.Stat(filepath.Join(build, need)); err != nil {
			if envoybin.Required() {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "python3", "record.py", "--gate", "httpx_multipart.py", "stripe_python.py")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	const want = `| client | further tries | key | headers that change | body | a retry at the gate |
|---|---|---|---|---|---|
| httpx_multipart.py | started again | idempotency-key of the application, same | content-type | boundary | replayed |
| stripe_python.py | its own after no answer, 409, 500, 503 | idempotency-key of the library, same | none | same | replayed |
| stripe_python.py | started again | idempotency-key of the application, same | none | same | replayed |
`
	if err != nil || string(out) != want {
		t.Errorf("%v: it printed\n%swant\n%s", err, out, want)
	}
}
