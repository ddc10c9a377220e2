package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
	"sigs.k8s.io/yaml"
)

// epoch is the time of all files and images, so that the same content has the same bytes.
var epoch = time.Unix(0, 0).UTC()

// user is the one that the manager runs as: it is nobody on the node.
const user = "65532:65532"

// entry is a file, or a folder if its name ends with a slash.
type entry struct {
	name string
	mode int64
	text []byte
}

func archive(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.text)), ModTime: epoch, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.text); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// image has a layer for each element of layers.
func image(config v1.ConfigFile, version string, layers ...[]entry) (v1.Image, error) {
	config.Created, config.RootFS = v1.Time{Time: epoch}, v1.RootFS{Type: "layers"}
	img, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &config)
	if err != nil {
		return nil, err
	}
	for _, entries := range layers {
		text, err := archive(entries)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil },
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "oncegate release"}})
		if err != nil {
			return nil, err
		}
	}
	return mutate.Annotations(img, map[string]string{
		"org.opencontainers.image.title": "Oncegate", "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0",
	}).(v1.Image), nil
}

// moduleImage is the module in the "compat" form of Wasm images: the last layer is a tar+gzip with plugin.wasm.
func moduleImage(module []byte, version string) (v1.Image, error) {
	return image(v1.ConfigFile{OS: "wasip1", Architecture: "wasm"}, version, []entry{{"plugin.wasm", 0o644, module}})
}

// managerImage has the manager, the roots of Mozilla for TLS to other servers, and nothing else: no shell, and no user with rights.
func managerImage(binary, arch, version string) (v1.Image, error) {
	text, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	return image(v1.ConfigFile{
		OS: "linux", Architecture: arch,
		Config: v1.Config{
			User: user, WorkingDir: "/", Entrypoint: []string{"/oncegate"}, Cmd: []string{"help"},
			ExposedPorts: map[string]struct{}{"8090/tcp": {}, "8091/tcp": {}},
			Labels:       map[string]string{"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
		},
	}, version, []entry{
		{"etc/", 0o755, nil}, {"etc/ssl/", 0o755, nil}, {"etc/ssl/certs/", 0o755, nil}, {"etc/ssl/certs/ca-certificates.crt", 0o644, roots()},
		{"etc/passwd", 0o644, []byte("oncegate:x:65532:65532::/:/none\n")}, {"tmp/", 0o1777, nil},
	}, []entry{{"oncegate", 0o755, text}})
}

// roots are Mozilla's as PEM, without those that only hold under conditions that PEM cannot say.
func roots() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// writeChart packs the chart as `helm package --version --app-version` does, but with the same bytes each time.
func writeChart(dir, to, version string) error {
	var entries []entry
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			var chart map[string]any
			if err := yaml.Unmarshal(text, &chart); err != nil {
				return err
			}
			chart["version"], chart["appVersion"] = version, version
			if text, err = yaml.Marshal(chart); err != nil {
				return err
			}
		}
		entries = append(entries, entry{"oncegate/" + filepath.ToSlash(name), 0o644, text})
		return nil
	})
	if err != nil {
		return err
	}
	return writeArchive(to, entries)
}

// writeArchive writes a tar+gzip.
func writeArchive(to string, entries []entry) error {
	text, err := archive(entries)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644)
}
