package cli

import (
	"strings"
	"testing"
)

func TestJobsLimit(t *testing.T) {
	url := jobsManager(t)
	for args, want := range map[string]string{
		"limit f --max-running 50 --max-running-per-key 2 --rate-count 10 --rate-per-seconds 60": "f: 50 running, 2 per key, 10 in 1m0s\n",
		"limit g": "g: no limits\n",
	} {
		if code, out, errs := jobsCLI(url, strings.Fields(args)...); code != 0 || out != want {
			t.Errorf("%s: %d %q %s", args, code, out, errs)
		}
	}
	if code, out, _ := jobsCLI(url, "functions"); code != 0 || !strings.Contains(out, "50 running, 2 per key, 10 in 1m0s") {
		t.Errorf("functions: %q", out)
	}
	for _, args := range []string{"limit f --rate-count 3", "limit f --max-running 0", "limit", "limit f g"} {
		if code, _, errs := jobsCLI(url, strings.Fields(args)...); code != 2 || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %d %q", args, code, errs)
		}
	}
}
