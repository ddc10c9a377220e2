package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
)

// leaves are the paths and values in a JSON text, sorted.
func leaves(t *testing.T, text []byte) (all []string) {
	t.Helper()
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, v := range v {
				walk(path+"/"+k, v)
			}
		case []any:
			for i, v := range v {
				walk(fmt.Sprintf("%s/%d", path, i), v)
			}
		default:
			all = append(all, fmt.Sprintf("%s = %v", path, v))
		}
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	walk("", v)
	slices.Sort(all)
	return all
}

// Nothing differs from the published file but what Local names.
func TestLocalKeepsTheRest(t *testing.T) {
	for mode, name := range byMode {
		published, err := LoadBootstrap(name)
		if err != nil {
			t.Fatal(err)
		}
		was, err := MarshalBootstrap(published)
		if err != nil {
			t.Fatal(err)
		}
		is, err := Local{
			Mode: mode, Listen: "127.0.0.2:1", Admin: "127.0.0.2:2", Upstream: "127.0.0.2:3", Manager: "127.0.0.2:4",
			Module: "/m.wasm", Plugin: map[string]any{"max_entries": 4096},
		}.Bootstrap()
		if err != nil {
			t.Fatal(err)
		}
		before := leaves(t, was)
		var changed []string
		for _, leaf := range leaves(t, is) {
			if slices.Contains(before, leaf) {
				continue
			}
			path, value, _ := strings.Cut(leaf, " = ")
			name := path[strings.LastIndexByte(path, '/')+1:]
			if name == "value" { // the filter's configuration
				fields := map[string]any{}
				if err := json.Unmarshal([]byte(value), &fields); err != nil {
					t.Fatal(err)
				}
				value = fmt.Sprint(fields["mode"], fields["max_entries"], fields["manager"] != nil)
			}
			changed = append(changed, name+" = "+value)
		}
		slices.Sort(changed)
		want := []string{
			"address = 127.0.0.2", "address = 127.0.0.2", "address = 127.0.0.2", "address = 127.0.0.2", "filename = /m.wasm",
			"port_value = 1", "port_value = 2", "port_value = 3", "port_value = 4", "type = STATIC", "type = STATIC",
			"value = " + fmt.Sprint(mode, 4096, true),
		}
		if diff := cmp.Diff(want, changed); diff != "" {
			t.Errorf("%s: changed otherwise than asked for (-, +):\n%s", name, diff)
		}
	}
}

// Further managers are reached as the one is.
func TestFurtherManagersAreReachedLikeTheFirst(t *testing.T) {
	for mode := range byMode {
		text, err := Local{
			Mode: mode, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Upstream: "127.0.0.1:1", Manager: "127.0.0.1:2", Module: "m",
			Managers: map[string]string{"a": "127.0.0.1:3", "b": "127.0.0.1:4"},
		}.Bootstrap()
		if err != nil {
			t.Fatal(err)
		}
		b := new(bootstrapv3.Bootstrap)
		if err := protojson.Unmarshal(text, b); err != nil {
			t.Fatal(err)
		}
		for name, port := range map[string]uint32{"oncegate_manager": 2, "a": 3, "b": 4} {
			c := clusterOf(b, name)
			got := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetPortValue()
			if got != port || c.GetLoadAssignment().GetClusterName() != name {
				t.Errorf("%s: %v", name, c)
			}
			checkStreams(t, c)
		}
	}
}

func TestLocalRefusesWhatItCannotPlace(t *testing.T) {
	good := Local{Mode: "body", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Upstream: "127.0.0.1:1", Manager: "127.0.0.1:1", Module: "m"}
	if _, err := good.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	for want, change := range map[string]func(*Local){
		`the mode is "fast", it must be body or headers`: func(l *Local) { l.Mode = "fast" },
		`the address "127.0.0.1" must be IP:port`:        func(l *Local) { l.Listen = "127.0.0.1" },
		`the address "127.0.0.1:65536" must be IP:port`:  func(l *Local) { l.Manager = "127.0.0.1:65536" },
		"refused": func(l *Local) { l.Edit = func(*hcmv3.HttpConnectionManager) error { return refused } },
	} {
		l := good
		change(&l)
		if _, err := l.Bootstrap(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestPluginConfigTakesOverrides(t *testing.T) {
	text, err := PluginConfig("headers", map[string]any{"pending_wait_timeout": 5})
	fields := map[string]any{}
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil || fields["mode"] != "headers" || fields["pending_wait_timeout"] != 5.0 || fields["max_response_body_bytes"] == nil {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := PluginConfig("", nil); err == nil {
		t.Error("there is a configuration for no mode")
	}
}
