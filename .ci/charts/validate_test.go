package charts

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/yannh/kubeconform/pkg/validator"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1 "istio.io/api/networking/v1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// schemas validates with the schemas of the repository and asks nobody else. The Prometheus Operator's are not among them: its
// definitions are in no module that can be had. Neither is that of an EnvoyProxy, which has a pod's fields many times. These
// objects are only read into their types.
func schemas(t *testing.T) validator.Validator {
	t.Helper()
	v, err := validator.New([]string{filepath.Join("testdata", "schemas", "{{.ResourceKind}}{{.KindSuffix}}.json")}, validator.Opts{
		Strict: true, SkipKinds: map[string]struct{}{"ServiceMonitor": {}, "PrometheusRule": {}, "EnvoyProxy": {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// decoder reads objects as strictly as an API server that is asked for that.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubernetes.AddToScheme, certmanagerv1.AddToScheme, monitoringv1.AddToScheme, gatewayv1.Install, egv1a1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{Yaml: true, Strict: true})
}

// istioSpecs are the types of Istio's objects. Their own JSON methods take unknown fields, so protojson reads them.
var istioSpecs = map[string]func() proto.Message{
	"networking.istio.io/v1 ServiceEntry":           func() proto.Message { return new(networkingv1.ServiceEntry) },
	"networking.istio.io/v1 DestinationRule":        func() proto.Message { return new(networkingv1.DestinationRule) },
	"networking.istio.io/v1 VirtualService":         func() proto.Message { return new(networkingv1.VirtualService) },
	"networking.istio.io/v1alpha3 EnvoyFilter":      func() proto.Message { return new(networkingv1alpha3.EnvoyFilter) },
	"extensions.istio.io/v1alpha1 WasmPlugin":       func() proto.Message { return new(extensionsv1alpha1.WasmPlugin) },
	"extensions.istio.io/v1alpha1 TrafficExtension": func() proto.Message { return new(extensionsv1alpha1.TrafficExtension) },
}

// check validates an object against its schema, and reads it into its own Go type.
func check(t *testing.T, v validator.Validator, d runtime.Decoder, name, doc string) {
	t.Helper()
	for _, r := range v.Validate(name, io.NopCloser(strings.NewReader(doc))) {
		if r.Status != validator.Valid && r.Status != validator.Skipped {
			t.Errorf("%s: %v\n%s", name, r.Err, doc)
		}
	}
	if err := readStrictly(d, doc); err != nil {
		t.Errorf("%s: %v\n%s", name, err, doc)
	}
}

func readStrictly(d runtime.Decoder, doc string) error {
	var object struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Spec       json.RawMessage `json:"spec"`
	}
	text, err := toJSON(doc)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	if spec := istioSpecs[object.APIVersion+" "+object.Kind]; spec != nil {
		return protojson.Unmarshal(object.Spec, spec())
	}
	_, _, err = d.Decode([]byte(doc), nil, nil)
	return err
}

func TestObjectsAreValid(t *testing.T) {
	v, d := schemas(t), decoder(t)
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			for _, doc := range objects(t, values(t, name)) {
				check(t, v, d, name, doc)
			}
		})
	}
}

// TestShippedFilesAreValid: so are the files that people copy from envoy/istio and envoy/gateway.
func TestShippedFilesAreValid(t *testing.T) {
	v, d := schemas(t), decoder(t)
	for _, dir := range []string{"istio", "gateway"} {
		files, err := filepath.Glob("../../envoy/" + dir + "/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatal("no files", err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for doc := range strings.SplitSeq(string(text), "\n---\n") {
				check(t, v, d, file, doc)
			}
		}
	}
}

// TestMistakesAreFound: both ways of validation see an unknown field and a wrong type, in each kind of object.
func TestMistakesAreFound(t *testing.T) {
	v, d := schemas(t), decoder(t)
	for _, doc := range objects(t, values(t, "hardened")) {
		if !strings.Contains(doc, "\nspec:\n") {
			continue // a ServiceAccount
		}
		for _, bad := range []string{
			strings.Replace(doc, "\nspec:\n", "\nspec:\n  unknownField: 1\n", 1),
			strings.Replace(doc, "\nspec:\n", "\nspec:\n  selector: 7\n  usages: 7\n  podSelector: 7\n", 1),
		} {
			for _, r := range v.Validate("bad", io.NopCloser(bytes.NewReader([]byte(bad)))) {
				if r.Status == validator.Valid {
					t.Errorf("the schema takes:\n%s", bad)
				}
			}
			if readStrictly(d, bad) == nil {
				t.Errorf("the type takes:\n%s", bad)
			}
		}
	}
}
