package charts

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const (
	program = "../../build/oncegate"
	// patience is how long a busy machine may take.
	patience = 2 * time.Minute
)

// container is the manager's, as the chart renders it.
func container(t *testing.T, name string) corev1.Container {
	t.Helper()
	for _, doc := range objects(t, values(t, name)) {
		if !strings.Contains(doc, "kind: StatefulSet") && !strings.Contains(doc, "kind: Deployment") {
			continue
		}
		var workload appsv1.StatefulSet // the template is the same in both
		if err := yaml.Unmarshal([]byte(doc), &workload); err != nil {
			t.Fatal(err)
		}
		return workload.Spec.Template.Spec.Containers[0]
	}
	t.Fatal("no workload")
	return corev1.Container{}
}

// command is what the container runs, with folders of the test in place of the volumes, and ports that are free.
func command(t *testing.T, c corev1.Container, pod string) (args []string, addresses string) {
	t.Helper()
	dir := t.TempDir()
	writeSecrets(t, filepath.Join(dir, "etc"))
	addresses = filepath.Join(dir, "addresses")
	replace := strings.NewReplacer("$(POD)", pod, "/var/lib/oncegate", filepath.Join(dir, "var"), "/etc/oncegate", filepath.Join(dir, "etc"),
		"0.0.0.0:8090", "127.0.0.1:0", "0.0.0.0:8091", "127.0.0.1:0", "s3://", "file://"+dir+"/", "gs://", "file://"+dir+"/", "azblob://", "file://"+dir+"/", "az://", "file://"+dir+"/")
	for _, a := range c.Args {
		args = append(args, replace.Replace(a))
	}
	return append(args, "--addr-file="+addresses), addresses
}

// writeSecrets makes what Secrets have in a cluster.
func writeSecrets(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "oncegate"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for name, text := range map[string][]byte{
		"auth/tokens":        []byte("gate-1-EXAMPLE-6f1d2c gate\n"),
		"encryption/keys":    []byte("k1:" + base64.StdEncoding.EncodeToString(make([]byte, 32)) + "\n"),
		"tls/tls.crt":        certPEM,
		"tls/tls.key":        keyPEM,
		"client-ca/ca.crt":   certPEM,
		"client-roles/roles": []byte("CN=gate gate\n"),
		"peer-token/token":   []byte("peer-1-EXAMPLE-6f1d2c\n"),
		"peer-ca/ca.crt":     certPEM,

		"peer-certificate/tls.crt": certPEM,
		"peer-certificate/tls.key": keyPEM,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRenderedCommandRuns: the manager starts with what the chart passes, and its probes succeed.
func TestRenderedCommandRuns(t *testing.T) {
	for _, name := range []string{"defaults", "hardened", "istio", "azure"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := container(t, name)
			args, addresses := command(t, c, "pay-oncegate-1")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, args...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = patience
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			admin := waitReady(ctx, addresses, c.StartupProbe.HTTPGet, ended)
			if admin != "" {
				for _, path := range []string{c.ReadinessProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path, "/metrics"} {
					if status := get(ctx, admin+path); status != http.StatusOK {
						t.Errorf("%s: status %d", path, status)
					}
				}
			}
			cancel()
			err := <-ended
			if admin == "" || err != nil && !errors.Is(err, context.Canceled) {
				t.Fatalf("%v: %v\n%s", args, err, out.String())
			}
		})
	}
}

var adminLine = regexp.MustCompile(`(?m)^admin (\S+)$`)

// waitReady returns the URL of the listener for administrators once the probe succeeds, and "" if the process ends before.
func waitReady(ctx context.Context, addresses string, probe *corev1.HTTPGetAction, ended chan error) string {
	scheme := strings.ToLower(cmp.Or(string(probe.Scheme), "http"))
	for {
		if text, err := os.ReadFile(addresses); err == nil {
			if m := adminLine.FindSubmatch(text); m != nil {
				if url := scheme + "://" + string(m[1]); get(ctx, url+probe.Path) == http.StatusOK {
					return url
				}
			}
		}
		select {
		case err := <-ended:
			ended <- err
			return ""
		case <-ctx.Done():
			return ""
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// kubelet is a client that, as Kubernetes' probes, does not verify certificates.
var kubelet = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

func get(ctx context.Context, url string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	resp, err := kubelet.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestFlagsOfASharedStore: there is no server here, so the manager gets as far as its missing address.
func TestFlagsOfASharedStore(t *testing.T) {
	args, _ := command(t, container(t, "postgres"), "pay-oncegate-5d8f-x")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "ONCEGATE_STORE_DSN=")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the engine postgres connects to it") {
		t.Errorf("%v: %v\n%s", args, err, out)
	}
}

// TestSettingsAreFlags: the schema of `settings` has flags of the manager only, and names those that it has not.
func TestSettingsAreFlags(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), program, "serve", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	flags := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  --([a-z-]+)$`).FindAllSubmatch(out, -1) {
		flags[string(m[1])] = true
	}
	var schema struct {
		Properties struct {
			Settings struct {
				Properties map[string]any `json:"properties"`
			} `json:"settings"`
		} `json:"properties"`
	}
	if err := yaml.Unmarshal(load(t).Schema, &schema); err != nil {
		t.Fatal(err)
	}
	settings := schema.Properties.Settings.Properties
	if len(settings) == 0 {
		t.Fatal("no settings")
	}
	for name := range settings {
		if !flags[name] {
			t.Errorf("the manager has no flag --%s", name)
		}
	}
	for name := range flags {
		if settings[name] == nil && !chartsOwn[name] {
			t.Logf("--%s can be given in extraArgs only", name)
		}
	}
}

// chartsOwn are the flags that the chart sets by other values, or that make no sense in a pod.
var chartsOwn = map[string]bool{
	"addr-file": true, "admin": true, "admin-tls-cert": true, "admin-tls-key": true, "auth-token-file": true, "client-ca": true, "client-roles-file": true, "data-dir": true,
	"encryption-key-file": true, "listen": true, "shard": true, "shard-was": true, "shards": true, "shards-version": true,
	"origin": true, "peer": true, "peer-ca": true, "peer-cert": true, "peer-key": true, "peer-token-file": true,
	"ship-to": true, "socket-mode": true, "store": true, "store-dsn": true, "tls-cert": true, "tls-key": true,
}
