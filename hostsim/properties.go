package hostsim

import (
	"net"
	"strconv"
	"strings"
)

// GetProperty implements HostCalls. Values have the form that Envoy serializes them to: strings unchanged, integers and
// durations as 8 bytes little endian, booleans as one byte, maps as serialized pairs.
func (v *vm) GetProperty(path string) ([]byte, Status) {
	c := v.ctx()
	if path == "" {
		return nil, StatusSerializationFailure
	}
	segments := strings.Split(strings.TrimSuffix(path, "\x00"), "\x00")
	if len(segments) == 1 {
		if value, ok := v.pluginProperty(segments[0]); ok {
			return value, StatusOK
		}
	}
	s := c.stream
	if s == nil {
		return nil, StatusNotFound
	}
	if value, ok := s.opts.Properties[strings.Join(segments, ".")]; ok {
		return value, StatusOK
	}
	if value, ok := s.property(segments); ok {
		return value, StatusOK
	}
	if len(segments) == 1 {
		if value, ok := s.info.values[segments[0]]; ok {
			return value, StatusOK
		}
	}
	return nil, StatusNotFound
}

// SetProperty implements HostCalls. The value is stored with the stream and is found under the same name, if the path
// is a single segment. A root context cannot store properties.
func (v *vm) SetProperty(path string, value []byte) Status {
	c := v.ctx()
	s := c.stream
	if s == nil {
		return StatusNotFound
	}
	size := len(path) + len(value)
	for k, old := range s.info.values {
		if k != path {
			size += len(k) + len(old)
		}
	}
	if size > propertyLimit {
		return StatusInternalFailure
	}
	if s.info.values == nil {
		s.info.values = make(map[string][]byte)
	}
	s.info.values[path] = append([]byte{}, value...)
	return StatusOK
}

func (v *vm) pluginProperty(name string) ([]byte, bool) {
	switch name {
	case "plugin_name":
		return []byte(v.host.cfg.PluginName), true
	case "plugin_root_id":
		return []byte(v.host.cfg.RootID), true
	case "plugin_vm_id":
		return []byte(v.host.cfg.VMID), true
	}
	return nil, false
}

func (s *Stream) property(path []string) ([]byte, bool) {
	switch path[0] {
	case "connection_id":
		return int64Bytes(s.opts.Connection.ID), len(path) == 1
	case "route_name":
		return []byte(s.route().Name), len(path) == 1
	case "cluster_name":
		return stringProperty(s.route().Cluster, len(path) == 1)
	}
	if len(path) < 2 {
		return nil, false
	}
	name := path[1]
	switch path[0] {
	case "request":
		return s.requestProperty(name, path[2:])
	case "response":
		return s.responseProperty(name, path[2:])
	case "connection":
		switch name {
		case "id":
			return int64Bytes(s.opts.Connection.ID), true
		case "mtls":
			return []byte{0}, true
		}
	case "source":
		return addressProperty(s.opts.Connection.SourceAddress, name)
	case "destination":
		return addressProperty(s.opts.Connection.DestinationAddress, name)
	case "upstream":
		if name == "request_attempt_count" {
			return int64Bytes(s.info.attempts), len(path) == 2
		}
		return addressProperty(s.info.upstreamAddress, name)
	case "xds":
		switch name {
		case "route_name":
			return []byte(s.route().Name), true
		case "cluster_name":
			return stringProperty(s.route().Cluster, true)
		}
	}
	return nil, false
}

func stringProperty(v string, ok bool) ([]byte, bool) { return []byte(v), ok && v != "" }

func addressProperty(address, name string) ([]byte, bool) {
	if address == "" {
		return nil, false
	}
	switch name {
	case "address":
		return []byte(address), true
	case "port":
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, false
		}
		n, err := strconv.ParseUint(port, 10, 16)
		return int64Bytes(n), err == nil
	}
	return nil, false
}

// requestHeaderOf are the properties of a request that are one of its headers.
var requestHeaderOf = map[string]string{
	"path": ":path", "host": ":authority", "scheme": ":scheme", "method": ":method", "id": "x-request-id", "referer": "referer",
	"useragent": "user-agent",
}

// requestProperty: properties from the headers exist only while the filter can see the headers (and in on_log).
func (s *Stream) requestProperty(name string, rest []string) ([]byte, bool) {
	switch name {
	case "time":
		return int64Bytes(uint64(s.info.start.UnixNano())), true
	case "protocol":
		return []byte(s.opts.Connection.Protocol), true
	case "duration":
		return int64Bytes(uint64(s.host.cfg.Clock.Now().Sub(s.info.start))), s.over
	}
	if !s.req.seeHeaders && !s.logging {
		return nil, false
	}
	h := s.req.headers
	if header, ok := requestHeaderOf[name]; ok {
		v, ok := h.Lookup(header)
		return []byte(v), ok
	}
	switch name {
	case "url_path":
		p, _, _ := strings.Cut(h.Get(":path"), "?")
		return []byte(p), true
	case "query":
		_, q, _ := strings.Cut(h.Get(":path"), "?")
		return []byte(q), true
	case "headers":
		return mapProperty(h, rest)
	case "size":
		if n, err := strconv.ParseUint(h.Get("content-length"), 10, 63); err == nil {
			return int64Bytes(n), true
		}
		return int64Bytes(s.info.reqBytes), true
	case "total_size":
		return int64Bytes(s.info.reqBytes + uint64(h.Bytes())), true
	}
	return nil, false
}

func (s *Stream) responseProperty(name string, rest []string) ([]byte, bool) {
	switch name {
	case "flags":
		return int64Bytes(uint64(s.info.flags)), true
	case "code":
		return int64Bytes(uint64(s.info.code)), s.info.code != 0
	case "code_details":
		return []byte(s.info.details), s.info.haveDetails
	case "size":
		return int64Bytes(s.info.respBytes), true
	}
	if !s.resp.seeHeaders && !s.logging {
		return nil, false
	}
	switch name {
	case "headers":
		return mapProperty(s.resp.headers, rest)
	case "trailers":
		if s.resp.seeTrailers || s.logging {
			return mapProperty(s.resp.trailers, rest)
		}
	}
	return nil, false
}

// mapProperty returns a whole map, or one of its values (repeated ones joined by commas).
func mapProperty(h Headers, rest []string) ([]byte, bool) {
	if len(rest) == 0 {
		return MarshalPairs(h), true
	}
	vs := h.Values(strings.ToLower(rest[0]))
	if len(vs) == 0 || len(rest) > 1 {
		return nil, false
	}
	return []byte(strings.Join(vs, ",")), true
}
