package doctor

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// object is a JSON object. Its methods return zero values for members that are missing or of another type, because the
// dumps of Envoys differ.
type object map[string]any

func (o object) at(name string) object {
	v, _ := o[name].(map[string]any)
	return v
}

func (o object) text(name string) string {
	v, _ := o[name].(string)
	return v
}

// number also takes a string, which is how protobuf's JSON writes 64 bits.
func (o object) number(name string, missing float64) float64 {
	switch v := o[name].(type) {
	case float64:
		return v
	case string:
		if n, err := strconv.ParseFloat(v, 64); err == nil {
			return n
		}
	}
	return missing
}

func (o object) list(name string) []object {
	values, _ := o[name].([]any)
	var all []object
	for _, v := range values {
		if m, ok := v.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

func (o object) texts(name string) []string {
	values, _ := o[name].([]any)
	var all []string
	for _, v := range values {
		if s, ok := v.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// walk calls visit with o and all objects in it.
func (o object) walk(path string, visit func(path string, o object)) {
	visit(strings.TrimPrefix(path, "."), o)
	for name, v := range o {
		walkValue(path+"."+name, v, visit)
	}
}

func walkValue(path string, v any, visit func(string, object)) {
	switch v := v.(type) {
	case map[string]any:
		object(v).walk(path, visit)
	case []any:
		for i, item := range v {
			walkValue(path+"["+strconv.Itoa(i)+"]", item, visit)
		}
	}
}

// all returns the objects in o whose "@type" ends with a name.
func (o object) all(typeName string) []object {
	var found []object
	o.walk("", func(_ string, o object) {
		if strings.HasSuffix(o.text("@type"), "."+typeName) {
			found = append(found, o)
		}
	})
	return found
}

func same(a, b object) bool { return reflect.DeepEqual(a, b) }

// sameObject reports whether a and b are one object of the dump.
func sameObject(a, b object) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// listeners returns the listeners that are in force.
func listeners(dump object) []object {
	var all []object
	for _, c := range dump.list("configs") {
		for _, l := range c.list("static_listeners") {
			all = append(all, l.at("listener"))
		}
		for _, l := range c.list("dynamic_listeners") {
			if active := l.at("active_state").at("listener"); active != nil {
				all = append(all, active)
			}
		}
	}
	return all
}

// discovered puts the configurations that Envoy got by extension discovery into the filters that name them.
func discovered(dump object) {
	known := map[string]any{}
	for _, c := range dump.list("configs") {
		for _, f := range c.list("ecds_filters") {
			known[f.at("ecds_filter").text("name")] = f.at("ecds_filter")["typed_config"]
		}
	}
	for _, l := range listeners(dump) {
		for _, m := range l.all("HttpConnectionManager") {
			for _, f := range m.list("http_filters") {
				if config := known[f.text("name")]; f["config_discovery"] != nil && config != nil {
					f["typed_config"] = config
				}
			}
		}
	}
}

// findGates returns the filters of Oncegate in all listeners.
func findGates(dump object) []gate {
	var found []gate
	for _, l := range listeners(dump) {
		for _, m := range l.all("HttpConnectionManager") {
			found = append(found, gatesOf(l, m)...)
		}
	}
	return found
}

// gatesOf returns the filters of Oncegate in a connection manager of a listener, in their order.
func gatesOf(listener, manager object) []gate {
	var found []gate
	filters := manager.list("http_filters")
	for i, f := range filters {
		filter := f.at("typed_config").at("config")
		if config, ok := gateConfig(filter); ok {
			found = append(found, gate{listener: listener, manager: manager, entry: f, before: filters[:i], after: filters[i+1:], filter: filter, config: config})
		}
	}
	return found
}

// gateConfig returns the configuration of a Wasm filter, if that is the gate's: it has a manager, or its names say so.
func gateConfig(filter object) (object, bool) {
	config := filter.at("configuration")
	if text, ok := config["value"].(string); ok {
		config = nil
		_ = json.Unmarshal([]byte(text), &config) // a configuration that is no JSON is another filter's
	} else if v := config.at("value"); v != nil {
		config = v
	}
	code := filter.at("vm_config").at("code").at("local").text("filename")
	named := strings.Contains(filter.text("name")+filter.text("root_id")+filter.at("vm_config").text("vm_id")+code, "oncegate")
	return config, filter != nil && (named || config.at("manager") != nil)
}

// shards returns the names in a gate's lists of shards.
func (g gate) shards() []string {
	m := g.config.at("manager")
	return append(m.texts("shards"), m.texts("previous_shards")...)
}

// clusters returns the clusters of a gate's managers.
func (g gate) clusters() []string {
	if names := g.shards(); len(names) > 0 {
		return names
	}
	return []string{cmp.Or(g.config.at("manager").text("cluster"), "oncegate_manager")}
}
