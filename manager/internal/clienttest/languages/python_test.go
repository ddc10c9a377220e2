package languages

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPythonPackage runs the tests of the Python package itself, and compiles all of it.
func TestPythonPackage(t *testing.T) {
	for _, args := range [][]string{{"-m", "compileall", "-q", "."}, {"-W", "error::ResourceWarning", "-m", "unittest", "discover", "-s", "tests"}} {
		cmd := exec.CommandContext(t.Context(), "python3", args...)
		cmd.Dir = filepath.Join("..", "..", "..", "client", "python")
		cmd.Env = append(os.Environ(), "PYTHONPYCACHEPREFIX="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("python3 %q: %v\n%s", args, err, out)
		}
	}
}
