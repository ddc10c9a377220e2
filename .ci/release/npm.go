package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var packageVersion = regexp.MustCompile(`(?m)^\t"version": "[^"]*"`)

// writePackage packs the TypeScript client as `npm pack` does, but with the same bytes each time. make built it from source into
// the folder built.
func writePackage(root, built, to, version string) error {
	source := filepath.Join(root, "manager", "client", "typescript")
	description, err := os.ReadFile(filepath.Join(source, "package.json"))
	if err != nil {
		return err
	}
	if found := packageVersion.FindAll(description, -1); len(found) != 1 {
		return fmt.Errorf("package.json of the TypeScript client has %d lines with a version, want 1", len(found))
	}
	description = packageVersion.ReplaceAll(description, []byte("\t\"version\": \""+version+"\""))
	entries := []entry{{"package/package.json", 0o644, description}}
	for name, file := range map[string]string{"LICENSE": filepath.Join(root, "LICENSE"), "README.md": filepath.Join(source, "README.md")} {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		entries = append(entries, entry{"package/" + name, 0o644, text})
	}
	files, err := os.ReadDir(filepath.Join(built, "lib"))
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(built, "lib", f.Name()))
		if err != nil {
			return err
		}
		entries = append(entries, entry{"package/lib/" + f.Name(), 0o644, text})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return writeArchive(to, entries)
}
