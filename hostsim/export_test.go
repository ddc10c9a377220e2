package hostsim

import "time"

// HostFunctionTypes tells tests what is offered: by "module.name", the value types of
// parameters and results as the binary format writes them.
func HostFunctionTypes() map[string][2]string {
	out := make(map[string][2]string)
	for module, functions := range hostFunctions {
		for name, f := range functions {
			out[module+"."+name] = [2]string{string(f.params), string(f.results)}
		}
	}
	return out
}

// PingSoon makes the streams that a cluster opens from now on notice a silent host soon.
func (c *HTTPCluster) PingSoon() { c.pingAfter, c.pingTimeout = time.Millisecond, time.Millisecond }
