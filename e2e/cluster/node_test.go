package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// nodeAddress is where the API server, the DNS and the registry listen; the pods' addresses follow.
	nodeAddress = "10.1.0.1"
	// registryHost is the registry of the pages.
	registryHost = "registry.example.com"
	onNodeEnv    = "ONCEGATE_ON_NODE"
)

// onNode runs the test again in a process with its own networks, mounts and processes, and returns true there: what runs in a cluster
// listens at ports and reads folders that are the same everywhere.
func onNode(t *testing.T) bool {
	t.Helper()
	if os.Getenv(onNodeEnv) != "" {
		return true
	}
	args := []string{"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	args = append(args, os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	if end, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(end).String())
	}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), onNodeEnv+"=1")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Errorf("in namespaces of its own (root makes them, and others where user namespaces are allowed): %v", err)
	}
	return false
}

// node runs the pods that Kubernetes' controllers make, each as processes with an address and a root file system of their own. It stands for
// the kubelet: it starts the containers with their arguments, environment and volumes, asks the startup and readiness probes, and reports to
// the API server.
type node struct {
	*cluster
	registryCA string // a file
	// images are the programs that stand for images, by their names without registry and tag.
	images map[string]string
	client *http.Client
	pods   map[types.UID]*pod
	count  int // of pods
	work   sync.WaitGroup
}

// pod is what runs of a pod.
type pod struct {
	stop context.CancelFunc
	done chan struct{}
}

// newNode starts a cluster with controllers, and its only node.
func newNode(t *testing.T, images map[string]string) *node {
	t.Helper()
	n := &node{
		images: images, pods: map[types.UID]*pod{},
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
	}
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+nodeAddress+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.shell(t, `mount -t tmpfs run /run
mount --bind `+resolv+` /etc/resolv.conf
ip link set lo up
ip link add pods type bridge
ip address add `+nodeAddress+`/16 dev pods
ip link set pods up`)
	n.cluster = startCluster(t, nodeAddress)
	n.startRegistry(t)
	startDNS(t, nodeAddress+":53", n.lookup)
	n.paste(t, `kubectl create -f - <<<'{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}'`)
	start(t, nil, "kube-controller-manager", built(t, "cluster/kube-controller-manager"), "--kubeconfig="+n.kubeconfig, "--secure-port=0",
		"--leader-elect=false", "--service-account-private-key-file="+n.key, "--root-ca-file="+n.ca,
		"--controllers=deployment-controller,replicaset-controller,statefulset-controller,job-controller,endpointslice-controller,"+
			"serviceaccount-controller,root-ca-certificate-publisher-controller")
	ctx, cancel := context.WithCancel(t.Context())
	n.work.Go(func() { n.run(ctx, t) })
	t.Cleanup(func() {
		cancel()
		n.work.Wait()
	})
	return n
}

func (n *node) shell(t *testing.T, script string) {
	t.Helper()
	if _, err := output(t.Context(), "", nil, "bash", "-euo", "pipefail", "-c", script); err != nil {
		t.Fatalf("%s\n%v", script, err)
	}
}

// api calls the API server as an administrator.
func (n *node) api(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, n.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return json.Unmarshal(text, out)
}

// lookup is the cluster's DNS: a Service leads to its first endpoint, and a pod with a hostname to that pod.
func (n *node) lookup(host string) string {
	name, ok := strings.CutSuffix(host, ".svc.cluster.local")
	parts := strings.Split(name, ".")
	if !ok || len(parts) < 2 {
		if host == registryHost {
			return nodeAddress
		}
		return ""
	}
	hostname := strings.Join(parts[:len(parts)-2], ".")
	var slices discoveryv1.EndpointSliceList
	err := n.api(context.Background(), http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/"+parts[len(parts)-1]+"/endpointslices?labelSelector="+
		discoveryv1.LabelServiceName+"%3D"+parts[len(parts)-2], nil, &slices)
	if err != nil {
		return ""
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready && (hostname == "" || e.Hostname != nil && *e.Hostname == hostname) {
				return e.Addresses[0]
			}
		}
	}
	return ""
}

// startRegistry starts a registry for images, which pods and the terminal trust.
func (n *node) startRegistry(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", nodeAddress+":443")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	server.Listener.Close()
	server.Listener = l
	server.StartTLS() // its certificate is for all names in example.com
	t.Cleanup(server.Close)
	n.registryCA = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(n.registryCA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	n.env = append(n.env, "SSL_CERT_FILE="+n.registryCA)
}

// run starts new pods and stops those that are to go.
func (n *node) run(ctx context.Context, t *testing.T) {
	for {
		var list corev1.PodList
		if err := n.api(ctx, http.MethodGet, "/api/v1/pods", nil, &list); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		for _, p := range list.Items {
			path := "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name
			running := n.pods[p.UID]
			switch {
			case p.DeletionTimestamp != nil:
				if running != nil {
					running.stop()
					<-running.done
				}
				err := n.api(ctx, http.MethodDelete, path, &metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID}}, new(any))
				if err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "NotFound") {
					t.Error(err)
				}
			case running == nil:
				podCtx, stop := context.WithCancel(ctx)
				running = &pod{stop, make(chan struct{})}
				n.pods[p.UID] = running
				n.count++
				ip := fmt.Sprintf("10.1.1.%d", n.count)
				n.work.Go(func() {
					defer close(running.done)
					defer stop()
					if err := n.runPod(podCtx, t, &p, path, ip); err != nil && podCtx.Err() == nil {
						t.Errorf("pod %s: %v", p.Name, err)
					}
				})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * tick):
		}
	}
}

// runPod runs a pod until ctx ends, or to its own end if it is of a Job.
func (n *node) runPod(ctx context.Context, t *testing.T, p *corev1.Pod, path, ip string) error {
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
	if err := n.api(ctx, http.MethodPost, path+"/binding", bind, new(any)); err != nil {
		return err
	}
	network := fmt.Sprintf(`ip netns add %[1]s
ip link add v%[1]s type veth peer name eth0 netns %[1]s
ip link set v%[1]s master pods up
ip -n %[1]s address add %[2]s/16 dev eth0
ip -n %[1]s link set lo up
ip -n %[1]s link set eth0 up`, netns(ip), ip)
	if _, err := output(ctx, "", nil, "bash", "-euo", "pipefail", "-c", network); err != nil {
		return err
	}
	p.Status.PodIP = ip
	started := metav1.Now()
	var running []*process
	for _, c := range p.Spec.Containers {
		proc, err := n.runContainer(ctx, t, p, &c, path, ip)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		defer proc.stop()
		running = append(running, proc)
	}
	job := p.Spec.RestartPolicy == corev1.RestartPolicyNever
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, StartTime: &started,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	for i, c := range p.Spec.Containers {
		state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
		if job {
			select {
			case <-running[i].done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if running[i].err != nil {
				return fmt.Errorf("%w: %s", running[i].err, running[i].tail())
			}
			status.Phase = corev1.PodSucceeded
			state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: started, FinishedAt: metav1.Now(), Reason: "Completed"}}
		} else {
			for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				if err := n.ask(ctx, running[i], &c, probe, ip); err != nil {
					return fmt.Errorf("%s: %w", c.Name, err)
				}
			}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: !job, Started: new(!job), State: state,
		})
	}
	if err := n.api(ctx, http.MethodPatch, path+"/status", map[string]any{"status": status}, new(any)); err != nil || job {
		return err
	}
	ended := make(chan *process, len(running))
	for _, proc := range running {
		n.work.Go(func() {
			<-proc.done
			ended <- proc
		})
	}
	select {
	case proc := <-ended:
		return fmt.Errorf("%s ended: %w: %s", proc.name, proc.err, proc.tail())
	case <-ctx.Done():
		return nil
	}
}

// netns names the network of the pod with an address.
func netns(ip string) string { return strings.ReplaceAll(ip, ".", "-") }

// ask waits until a probe succeeds.
func (n *node) ask(ctx context.Context, proc *process, c *corev1.Container, probe *corev1.Probe, ip string) error {
	if probe == nil {
		return nil
	}
	if probe.HTTPGet == nil {
		return errors.New("only HTTP probes are known here")
	}
	port := probe.HTTPGet.Port.String()
	for _, p := range c.Ports {
		if p.Name == port {
			port = fmt.Sprint(p.ContainerPort)
		}
	}
	url := strings.ToLower(string(probe.HTTPGet.Scheme)) + "://" + ip + ":" + port + probe.HTTPGet.Path
	return proc.until(ctx, answers(n.client, url))
}

// runContainer starts a container in the pod's network.
func (n *node) runContainer(ctx context.Context, t *testing.T, p *corev1.Pod, c *corev1.Container, path, ip string) (*process, error) {
	_, image, _ := strings.Cut(c.Image, "/")
	image, _, _ = strings.Cut(image, ":")
	program := n.images[image]
	if program == "" {
		return nil, fmt.Errorf("no program stands for the image %s", c.Image)
	}
	dir := t.TempDir()
	var script strings.Builder
	fmt.Fprintf(&script, `fs=%[1]s
mount -t tmpfs pod $fs
mkdir $fs/{up,work,root}
mount -t overlay -o lowerdir=/,upperdir=$fs/up,workdir=$fs/work pod $fs/root
cd $fs/root
for d in dev proc; do mount --rbind /$d $d; done
mount -t tmpfs shm dev/shm
rm -f etc/resolv.conf etc/ssl/certs/ca-certificates.crt
mkdir -p etc/ssl/certs
echo nameserver %[2]s >etc/resolv.conf
cp %[3]s etc/ssl/certs/ca-certificates.crt
touch usr/local/bin/%[4]s
mount --bind %[5]s usr/local/bin/%[4]s
`, dir, nodeAddress, n.registryCA, filepath.Base(program), program)
	for _, m := range c.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if v.Name != m.Name {
				continue
			}
			from, err := n.volume(ctx, t, p, &v.VolumeSource, path)
			if err != nil {
				return nil, fmt.Errorf("volume %s: %w", v.Name, err)
			}
			fmt.Fprintf(&script, "path=.$(chroot . realpath -m %s)\nmkdir -p $path\nmount --bind %s $path\n", m.MountPath, from)
		}
	}
	env := []string{"KUBERNETES_SERVICE_HOST=" + nodeAddress, "KUBERNETES_SERVICE_PORT=" + n.url[strings.LastIndex(n.url, ":")+1:]}
	var expand []string
	for _, e := range c.Env {
		value := e.Value
		if ref := e.ValueFrom; ref != nil && ref.SecretKeyRef != nil {
			var s corev1.Secret
			if err := n.api(ctx, http.MethodGet, "/api/v1/namespaces/"+p.Namespace+"/secrets/"+ref.SecretKeyRef.Name, nil, &s); err != nil {
				return nil, fmt.Errorf("the variable %s: %w", e.Name, err)
			}
			value = string(s.Data[ref.SecretKeyRef.Key])
		} else if ref != nil {
			field := e.ValueFrom.FieldRef
			known := map[string]string{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "status.podIP": ip}
			if field == nil || known[field.FieldPath] == "" && !strings.HasPrefix(field.FieldPath, "metadata.annotations[") {
				return nil, fmt.Errorf("the variable %s comes from a source that is not known here", e.Name)
			}
			value = known[field.FieldPath]
		}
		env = append(env, e.Name+"="+value)
		expand = append(expand, "$("+e.Name+")", value)
	}
	script.WriteString(`exec chroot . "$@"`)
	command := c.Command
	if len(command) == 0 {
		command = []string{filepath.Base(program)}
	}
	args := []string{"netns", "exec", netns(ip), "bash", "-euo", "pipefail", "-c", script.String(), "bash"}
	for _, a := range append(command[:len(command):len(command)], c.Args...) {
		args = append(args, strings.NewReplacer(expand...).Replace(a))
	}
	proc, err := startProcess(env, filepath.Join(t.TempDir(), "log"), "ip", args...)
	if err != nil {
		return nil, err
	}
	proc.name = p.Name + "/" + c.Name
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s", proc.name, proc.tail())
		}
	})
	return proc, nil
}

// volume makes a folder with what a volume has.
func (n *node) volume(ctx context.Context, t *testing.T, p *corev1.Pod, v *corev1.VolumeSource, path string) (string, error) {
	dir := t.TempDir()
	put := func(data map[string][]byte, items []corev1.KeyToPath) error {
		names := map[string]string{}
		for key := range data {
			names[key] = key
		}
		if items != nil {
			clear(names)
			for _, i := range items {
				names[i.Key] = i.Path
			}
		}
		for key, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), data[key], 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	configMap := func(name string, items []corev1.KeyToPath) error {
		var m corev1.ConfigMap
		if err := n.api(ctx, http.MethodGet, "/api/v1/namespaces/"+p.Namespace+"/configmaps/"+name, nil, &m); err != nil {
			return err
		}
		data := map[string][]byte{}
		for key, text := range m.Data {
			data[key] = []byte(text)
		}
		return put(data, items)
	}
	switch {
	case v.EmptyDir != nil:
		return dir, nil
	case v.PersistentVolumeClaim != nil:
		dir = filepath.Join(n.dir, "volumes", p.Namespace, v.PersistentVolumeClaim.ClaimName)
		return dir, os.MkdirAll(dir, 0o755)
	case v.Secret != nil:
		var s corev1.Secret
		if err := n.api(ctx, http.MethodGet, "/api/v1/namespaces/"+p.Namespace+"/secrets/"+v.Secret.SecretName, nil, &s); err != nil {
			return "", err
		}
		return dir, put(s.Data, v.Secret.Items)
	case v.ConfigMap != nil:
		return dir, configMap(v.ConfigMap.Name, v.ConfigMap.Items)
	case v.Projected != nil: // the pod's way to the API server
		for _, s := range v.Projected.Sources {
			var err error
			switch {
			case s.ServiceAccountToken != nil:
				token := map[string]any{}
				err = n.api(ctx, http.MethodPost, "/api/v1/namespaces/"+p.Namespace+"/serviceaccounts/"+p.Spec.ServiceAccountName+"/token", map[string]any{}, &token)
				if err == nil {
					text, _ := token["status"].(map[string]any)["token"].(string)
					err = put(map[string][]byte{s.ServiceAccountToken.Path: []byte(text)}, nil)
				}
			case s.ConfigMap != nil:
				err = configMap(s.ConfigMap.Name, s.ConfigMap.Items)
			case s.DownwardAPI != nil:
				err = put(map[string][]byte{"namespace": []byte(p.Namespace)}, nil)
			}
			if err != nil {
				return "", err
			}
		}
		return dir, nil
	}
	return "", fmt.Errorf("of a kind that is not known here: %+v", v)
}
