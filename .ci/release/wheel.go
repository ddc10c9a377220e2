package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	projectField = regexp.MustCompile(`(?m)^(name|version|description|requires-python) = "([^"]*)"$`)
	preRelease   = regexp.MustCompile(`^([0-9.]+)(?:-(alpha|beta|rc)\.([0-9]+))?$`)
	wheelCode    = regexp.MustCompile(`\.py$|^py\.typed$`)
)

// zipEpoch is the earliest time of a file in a zip archive.
var zipEpoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// pythonVersion writes a version as Python does: 1.2.3rc1 for 1.2.3-rc.1.
func pythonVersion(version string) (string, error) {
	m := preRelease.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("version %q: Python has no such version; after the numbers, -alpha.N, -beta.N and -rc.N are allowed", version)
	}
	return m[1] + map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[m[2]] + m[3], nil
}

// writeWheel packs the Python client as a build of its pyproject.toml does, but with the same bytes each time.
func writeWheel(root, folder, version string) error {
	version, err := pythonVersion(version)
	if err != nil {
		return err
	}
	source := filepath.Join(root, "manager", "client", "python")
	read := func(path ...string) (text []byte) {
		if err == nil {
			text, err = os.ReadFile(filepath.Join(path...))
		}
		return text
	}
	project, readme, license := read(source, "pyproject.toml"), read(source, "README.md"), read(root, "LICENSE")
	fields := map[string]string{}
	for _, m := range projectField.FindAllSubmatch(project, -1) {
		fields[string(m[1])] = string(m[2])
	}
	if err == nil && len(fields) != 4 {
		err = fmt.Errorf("pyproject.toml of the Python client has the fields %v, want name, version, description and requires-python", fields)
	}
	var entries []entry
	files, dirErr := os.ReadDir(filepath.Join(source, fields["name"]))
	for _, f := range files {
		if wheelCode.MatchString(f.Name()) {
			entries = append(entries, entry{fields["name"] + "/" + f.Name(), 0o644, read(source, fields["name"], f.Name())})
		}
	}
	if err == nil {
		err = dirErr
	}
	if err != nil {
		return err
	}
	info := fields["name"] + "-" + version + ".dist-info/"
	metadata := fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: %s\nLicense: Apache-2.0\nRequires-Python: %s\nClassifier: Typing :: Typed\nDescription-Content-Type: text/markdown\n\n%s",
		fields["name"], version, fields["description"], fields["requires-python"], readme)
	entries = append(entries,
		entry{info + "LICENSE", 0o644, license},
		entry{info + "METADATA", 0o644, []byte(metadata)},
		entry{info + "WHEEL", 0o644, []byte("Wheel-Version: 1.0\nGenerator: oncegate\nRoot-Is-Purelib: true\nTag: py3-none-any\n")},
	)
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var record strings.Builder
	for _, e := range entries {
		sum := sha256.Sum256(e.text)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", e.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(e.text))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	entries = append(entries, entry{info + "RECORD", 0o644, []byte(record.String())})

	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: zipEpoch}
		h.SetMode(os.FileMode(e.mode))
		part, err := w.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := part.Write(e.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, fields["name"]+"-"+version+"-py3-none-any.whl"), out.Bytes(), 0o644)
}
