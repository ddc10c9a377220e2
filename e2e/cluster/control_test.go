package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cluster is an API server without controllers, and a person with a terminal in a folder that looks like the repository.
type cluster struct {
	kubeconfig string
	// url is the API server's, ca and key the files with its certificate's CA and with the key that signs service accounts' tokens.
	url, ca, key string
	// dir is the terminal's folder, env its environment beside the test's.
	dir string
	env []string
}

// newCluster starts it, for one test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	return startCluster(t, "127.0.0.1")
}

const adminToken = "admin-1-EXAMPLE"

// startCluster starts it at an address.
func startCluster(t *testing.T, address string) *cluster {
	t.Helper()
	dir := t.TempDir()
	etcd := freePort(t)
	peer := "http://127.0.0.1:" + freePort(t)
	store := start(t, nil, "etcd", "etcd", "--data-dir="+filepath.Join(dir, "etcd"), "--name=a", "--listen-client-urls=http://127.0.0.1:"+etcd,
		"--advertise-client-urls=http://127.0.0.1:"+etcd, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=a="+peer)
	store.await(t, "ready", answers(http.DefaultClient, "http://127.0.0.1:"+etcd+"/health"))

	key := filepath.Join(dir, "service-accounts.pem")
	writeKey(t, key)
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(adminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	port, certs := freePort(t), filepath.Join(dir, "certs")
	api := start(t, nil, "kube-apiserver", built(t, "cluster/kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:"+etcd, "--bind-address="+address, "--secure-port="+port, "--cert-dir="+certs,
		"--endpoint-reconciler-type=none", "--allow-privileged", "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC", "--token-auth-file="+tokens,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key)
	url := "https://" + address + ":" + port
	unverified := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // it has just made the certificate
	api.await(t, "ready", answers(unverified, url+"/readyz"))

	c := &cluster{
		kubeconfig: filepath.Join(dir, "kubeconfig"), url: url, ca: filepath.Join(certs, "apiserver.crt"), key: key, dir: filepath.Join(dir, "terminal"),
	}
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`, url, c.ca, adminToken)
	if err := os.WriteFile(c.kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"charts", "envoy"} {
		if err := os.CopyFS(filepath.Join(c.dir, name), os.DirFS(filepath.Join(top, name))); err != nil {
			t.Fatal(err)
		}
	}
	c.env = []string{"KUBECONFIG=" + c.kubeconfig, "HOME=" + dir, "PATH=" + filepath.Join(top, "build", "cluster") + ":" + os.Getenv("PATH")}
	return c
}

func writeKey(t *testing.T, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err == nil {
		err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// paste pastes commands into the terminal and returns what they print.
func (c *cluster) paste(t *testing.T, commands string) string {
	t.Helper()
	out, err := output(t.Context(), c.dir, c.env, "bash", "-euo", "pipefail", "-c", commands)
	if err != nil {
		t.Fatalf("%s\n%v", commands, err)
	}
	return out
}

// refused pastes commands that must fail, with an error that names why.
func (c *cluster) refused(t *testing.T, commands, why string) {
	t.Helper()
	out, err := output(t.Context(), c.dir, c.env, "bash", "-euo", "pipefail", "-c", commands)
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("%s\nwants the error %q, got %v\n%s", commands, why, err, out)
	}
}

// write puts a file into the terminal's folder.
func (c *cluster) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// apply sends objects to the API server.
func (c *cluster) apply(t *testing.T, objects string) {
	t.Helper()
	c.write(t, "objects.yaml", objects)
	c.paste(t, "kubectl apply --server-side -f objects.yaml")
}

// restricted makes the namespace refuse pods that do not comply with the Pod Security Standard "restricted", and sees that it does.
func (c *cluster) restricted(t *testing.T, namespace string) {
	t.Helper()
	c.paste(t, "kubectl label namespace "+namespace+" pod-security.kubernetes.io/enforce=restricted")
	c.paste(t, "kubectl -n "+namespace+" create serviceaccount default") // there is no controller that does it
	c.refused(t, "kubectl -n "+namespace+" run bad --image=example.com/bad --privileged", "violates PodSecurity")
}
