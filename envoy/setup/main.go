// Command setup finds the Envoys that the make targets run, and installs pinned ones where that is needed.
//
//	setup default   the one that make run and make demo use; prints it
//	setup tests     those that the tests run on; prints what the tests run on
//	setup report    installs nothing and names what the tests could not run on, if anything
//
// It works in the repository's folder. It exits 1 when there is no Envoy, under `tests` and `report` only when the tests
// need one (CI=true, or ENVOYS says so), and 2 when ENVOY_BIN, ENVOYS or the command line is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	in := envoybin.Installer{
		Toolchain: filepath.Join("build", "toolchain"), AptInstall: filepath.Join(".ci", "apt-install"), Log: os.Stderr,
	}
	code := run(ctx, in, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, in envoybin.Installer, args []string, stdout, stderr io.Writer) int {
	var err error
	switch what := strings.Join(args, " "); what {
	case "default":
		err = forRunning(ctx, in, stdout)
	case "tests":
		err = forTests(ctx, in, stdout, stderr)
	case "report":
		err = report(ctx, in.Toolchain, stdout)
	default:
		fmt.Fprintf(stderr, "setup: the command is %q, it must be default, tests or report\n", what)
		return 2
	}
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "setup: %v\n", err)
	if bad := (*envoybin.SettingError)(nil); errors.As(err, &bad) {
		return 2
	}
	return 1
}

func forRunning(ctx context.Context, in envoybin.Installer, stdout io.Writer) error {
	b, err := envoybin.Find(ctx, in.Toolchain)
	if errors.Is(err, envoybin.ErrNone) {
		b, err = in.Install(ctx, envoybin.Default)
	}
	if err == nil {
		fmt.Fprintln(stdout, b)
	}
	return err
}

func forTests(ctx context.Context, in envoybin.Installer, stdout, stderr io.Writer) error {
	_, missing, err := envoybin.ForTests(ctx, in.Toolchain)
	if err != nil {
		return err
	}
	for _, m := range missing {
		if _, err := in.Install(ctx, m.Version); err != nil {
			if envoybin.Required() {
				return err
			}
			fmt.Fprintf(stderr, "setup: %v\n", err)
		}
	}
	found, _, err := envoybin.ForTests(ctx, in.Toolchain)
	if err != nil {
		return err
	}
	names := []string{"gateway"}
	for _, b := range found {
		names = append(names, b.String())
	}
	fmt.Fprintf(stdout, "the tests run on: %s\n", strings.Join(names, ", "))
	return nil
}

func report(ctx context.Context, toolchain string, stdout io.Writer) error {
	_, missing, err := envoybin.ForTests(ctx, toolchain)
	if err != nil || len(missing) == 0 {
		return err
	}
	names := make([]string, len(missing))
	for i, m := range missing {
		names[i] = m.String()
	}
	line := "the tests did not run on: " + strings.Join(names, ", ")
	if envoybin.Required() {
		return errors.New(line)
	}
	fmt.Fprintln(stdout, line)
	return nil
}
