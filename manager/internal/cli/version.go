package cli

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/oncegate/oncegate/manager/internal/settings"
)

// version names this build: the release, else the commit, else "dev".
func version(release string) string {
	if release != "" {
		return release
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

func printVersion(_ context.Context, env Environment, args []string) error {
	if len(args) > 0 {
		return settings.Usagef("unexpected argument %q", args[0])
	}
	_, err := fmt.Fprintf(env.Stdout, "oncegate %s %s %s/%s\n", version(env.Version), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
