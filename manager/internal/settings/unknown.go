package settings

import (
	"regexp"
	"slices"
	"strings"
)

// serviceVariable matches what Kubernetes puts into the environment for a Service whose name begins with oncegate.
var serviceVariable = regexp.MustCompile(`^ONCEGATE_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?)$`)

// otherVariables are read by other commands.
var otherVariables = []string{"ONCEGATE_MANAGER_URL"}

// UnknownVariables returns the names in environ, lines NAME=VALUE, that begin as those of settings do and are none.
func UnknownVariables(environ []string) []string {
	known := slices.Clone(otherVariables)
	for _, s := range new(Settings).all() {
		known = append(known, s.env)
	}
	var unknown []string
	for _, line := range environ {
		name, _, _ := strings.Cut(line, "=")
		if (strings.HasPrefix(name, "ONCEGATE_") || strings.HasPrefix(name, "IDEMPOTENCY_")) && !slices.Contains(known, name) && !serviceVariable.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
