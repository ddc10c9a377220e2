package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

const mainModule = "github.com/oncegate/oncegate"

// writeBinaryBOM writes binary.cdx.json with what the linker noted in the binary.
func writeBinaryBOM(binary, version string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	components := []cdx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if ofThisRepository(m.Path) {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, module(m.Path, m.Version, m.Sum))
	}
	return writeBOM(binary, version, components)
}

// writeModuleBOM does so for the gate. TinyGo notes nothing in the module, so the go command says what it is built from.
func writeModuleBOM(ctx context.Context, root, file, version string) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", "./plugin")
	cmd.Dir, cmd.Stderr, cmd.Env = root, os.Stderr, append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=-tags=tinygo.wasm")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	var components []cdx.Component
	for _, line := range slices.Compact(lines) {
		if path, v, ok := strings.Cut(line, " "); ok && !ofThisRepository(path) {
			components = append(components, module(path, v, ""))
		}
	}
	return writeBOM(file, version, components)
}

// ofThisRepository reports whether a module is a part of what the list is about. Such a module has the version of the whole.
func ofThisRepository(path string) bool {
	return path == mainModule || strings.HasPrefix(path, mainModule+"/")
}

func module(path, version, sum string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + version
	c := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: path, Version: version, PackageURL: purl}
	if sum != "" { // a digest over the files of the module, which CycloneDX has no word for
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: sum}}
	}
	return c
}

// writeBOM leaves out the serial number and the time, which differ each time.
func writeBOM(file, version string, components []cdx.Component) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		Type: cdx.ComponentTypeApplication, BOMRef: "pkg:golang/" + mainModule + "@v" + version, Name: filepath.Base(file), Version: version,
		PackageURL: "pkg:golang/" + mainModule + "@v" + version,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}}
	bom.Components = &components
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return os.WriteFile(file+".cdx.json", out.Bytes(), 0o644)
}
