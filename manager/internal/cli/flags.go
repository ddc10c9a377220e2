package cli

import (
	"errors"
	"flag"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/settings"
)

// badValue is what package flag says about a value that a flag does not take.
var badValue = regexp.MustCompile(`^invalid (?:boolean )?value (".*") for (?:flag )?-([^ :]+): (.*)$`)

// parseFlags parses flags that may come before and after the arguments, and returns the arguments. If help is asked for, it
// calls help and returns flag.ErrHelp. Other errors are of usage.
func parseFlags(fs *flag.FlagSet, args []string, help func()) (rest []string, err error) {
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	for {
		if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
			help()
			return nil, err
		} else if err != nil {
			return nil, settings.Usagef("%s", badValue.ReplaceAllString(err.Error(), "--$2 $1: $3"))
		}
		if fs.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
}

// parseOnlyFlags is parseFlags for a command that takes no arguments.
func parseOnlyFlags(fs *flag.FlagSet, args []string, help func()) error {
	rest, err := parseFlags(fs, args, help)
	if len(rest) > 0 {
		return settings.Usagef("unexpected argument %q", rest[0])
	}
	return err
}

// readInput reads the file that an argument or a flag names, and the standard input for "-". Errors are of usage, and begin
// with what.
func readInput(stdin io.Reader, what, name string, most int) ([]byte, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, settings.Usagef("%s: %v", what, err)
		}
		defer file.Close()
		in = file
	}
	b, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
	switch {
	case err != nil:
		return nil, settings.Usagef("%s: %v", what, err)
	case len(b) > most:
		return nil, settings.Usagef("%s %s: more than %d bytes", what, name, most)
	}
	return b, nil
}

// isHelp reports whether a word asks for help.
func isHelp(word string) bool {
	return slices.Contains([]string{"help", "-h", "-help", "--help"}, word)
}

// chosen returns the first argument, which must be one of words. If it asks for help, chosen calls help and returns
// flag.ErrHelp.
func chosen(args []string, help func(), words ...string) (string, error) {
	last := len(words) - 1
	allowed := "must be " + words[last]
	if last > 0 {
		allowed = "must be " + strings.Join(words[:last], ", ") + " or " + words[last]
	}
	switch {
	case len(args) > 0 && isHelp(args[0]):
		help()
		return "", flag.ErrHelp
	case len(args) == 0 || strings.HasPrefix(args[0], "-"):
		return "", settings.Usagef("a command is missing: %s", allowed)
	case !slices.Contains(words, args[0]):
		return "", settings.Usagef("command %q: %s", args[0], allowed)
	}
	return args[0], nil
}
