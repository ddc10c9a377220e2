package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// buildVersion is set by the linker for releases: -X main.buildVersion=v1.2.3.
var buildVersion string

// version names this build: the release, else the commit, else "dev".
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return "dev"
	}
	return "dev-" + revision + dirty
}

func printVersion(_ context.Context, env environment, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	_, err := fmt.Fprintf(env.stdout, "manager %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
