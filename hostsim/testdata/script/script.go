// Package script is the logic of a test filter whose behaviour is written in its
// configuration and in the x-script header of each request. It runs as a wasm guest
// (guests/script) and natively, so that the same test shows both.
//
// A script is "when=op,op;when=op". When is one of the callbacks
//
//	start configure tick queue done cb                      (VM and plugin configuration)
//	rh rb rt sh sb st log sdone delete cb gm gr gt gc       (x-script)
//
// (r: request, s: response; h, b, t: headers, body, trailers; cb: answer to a callout; g: a gRPC stream that the request
// opened; m, r, t, c: metadata, message, trailers, close),
// or with a number that callback's n-th call on the stream ("rb2"). An op is
// "name:arg:arg"; whatever it finds out is logged as "<callback>: <op> = <status>
// <result>". With "name=a" in x-script the stream's lines begin with a.
package script

import (
	"slices"
	"strconv"
	"strings"
)

// Host is what the script needs of the host functions; statuses are the ABI's numbers.
type Host interface {
	Log(level uint32, text string) uint32
	GetProperty(path string) ([]byte, uint32)
	SetProperty(path string, value []byte) uint32
	GetStatus() (uint32, string)
	Foreign(name string) uint32
	Get(m uint32, key string) (string, uint32)
	Pairs(m uint32) ([][2]string, uint32)
	Size(m uint32) (uint32, uint32)
	Add(m uint32, key, value string) uint32
	Replace(m uint32, key, value string) uint32
	Remove(m uint32, key string) uint32
	SetPairs(m uint32, pairs [][2]string) uint32
	Buffer(b, start, length uint32) ([]byte, uint32)
	BufferSize(b uint32) (uint32, uint32)
	SetBuffer(b, start, length uint32, value []byte) uint32
	Continue(t uint32) uint32
	Close(t uint32) uint32
	Reply(code uint32, details string, body []byte, headers [][2]string, grpc int32) uint32
	Effective(id uint32) uint32
	Done() uint32
	Call(cluster string, headers [][2]string, body []byte, trailers [][2]string, timeout uint32) (uint32, uint32)
	GRPCStream(service []byte, name, method string, metadata [][2]string) (uint32, uint32)
	GRPCSend(token uint32, message []byte, end bool) uint32
	GRPCClose(token uint32) uint32
	GRPCCancel(token uint32) uint32
	SharedGet(key string) ([]byte, uint32, uint32)
	SharedSet(key string, value []byte, cas uint32) uint32
	QueueRegister(name string) (uint32, uint32)
	QueueResolve(vmID, name string) (uint32, uint32)
	Enqueue(id uint32, item []byte) uint32
	Dequeue(id uint32) ([]byte, uint32)
	Define(t uint32, name string) (uint32, uint32)
	Increment(id uint32, offset int64) uint32
	Record(id uint32, value uint64) uint32
	Metric(id uint32) (uint64, uint32)
	Tick(ms uint32) uint32
	Time() uint64
}

// VM is one VM's state.
type VM struct {
	h       Host
	plugin  map[string]string
	streams map[uint32]*stream
	callers map[uint32]uint32 // callout token -> context
	metrics map[string]uint32
	calls   []*grpcCall
	root    uint32
}

// grpcCall is a gRPC stream, which a script names. Its callbacks run the script of the request that opened it.
type grpcCall struct {
	name      string
	token, id uint32
	ops       map[string]string
	count     map[string]int
}

type stream struct {
	name  string // and a blank; "" without a name
	ops   map[string]string
	count map[string]int
}

// New makes a VM.
func New(h Host) *VM {
	return &VM{h: h, plugin: map[string]string{}, streams: map[uint32]*stream{}, callers: map[uint32]uint32{}, metrics: map[string]uint32{}}
}

func parse(text string) map[string]string {
	ops := map[string]string{}
	for _, part := range strings.Split(text, ";") {
		if when, what, ok := strings.Cut(part, "="); ok {
			ops[strings.TrimSpace(when)] = what
		}
	}
	return ops
}

// The ABI's numbers that the script uses by name.
const (
	mapRequestHeaders = 0
	bufferGRPC        = 5
	bufferPlugin      = 7
	bufferVM          = 6
	logInfo           = 2
)

// Create is on_context_create.
func (v *VM) Create(id, parent uint32) {
	if parent == 0 {
		v.root = id
		return
	}
	v.streams[id] = &stream{count: map[string]int{}} // its script comes with the headers
}

// Start is on_vm_start.
func (v *VM) Start(size uint32) bool {
	text, _ := v.h.Buffer(bufferVM, 0, size)
	v.plugin = parse(string(text))
	_, ok := v.runPlugin("start")
	return ok
}

// Configure is on_configure.
func (v *VM) Configure(size uint32) bool {
	text, _ := v.h.Buffer(bufferPlugin, 0, size)
	for when, what := range parse(string(text)) {
		v.plugin[when] = what
	}
	_, ok := v.runPlugin("configure")
	return ok
}

// Plugin is one of the plugin's other callbacks: tick, queue, done.
func (v *VM) Plugin(when string) bool {
	_, ok := v.runPlugin(when)
	return ok
}

func (v *VM) runPlugin(when string) (uint32, bool) { return v.run(when, v.root, v.plugin[when]) }

// Stream is one of a stream's callbacks; size and end are logged if the script has an
// entry for it.
func (v *VM) Stream(when string, id, size uint32, end bool) uint32 {
	s := v.streams[id]
	if s == nil {
		return 0
	}
	if when == "rh" {
		text, _ := v.h.Get(mapRequestHeaders, "x-script")
		s.ops = parse(text)
		if name := s.ops["name"]; name != "" {
			s.name = name + " "
		}
	}
	s.count[when]++
	what, ok := s.ops[when+strconv.Itoa(s.count[when])]
	if !ok {
		what, ok = s.ops[when]
	}
	if ok {
		line := when + " " + strconv.Itoa(int(size))
		if end {
			line += " end"
		}
		v.log(id, line)
	}
	action, _ := v.run(when, id, what)
	if when == "delete" {
		delete(v.streams, id)
	}
	return action
}

// Answer is on_http_call_response.
func (v *VM) Answer(token, headers, size, trailers uint32) {
	v.h.Log(logInfo, "answer "+strconv.Itoa(int(headers))+" headers, "+strconv.Itoa(int(size))+" bytes, "+strconv.Itoa(int(trailers))+" trailers")
	id := v.callers[token]
	delete(v.callers, token)
	if s := v.streams[id]; s != nil {
		v.run("cb", id, s.ops["cb"])
		return
	}
	v.run("cb", v.root, v.plugin["cb"])
}

// GRPC is one of the callbacks of a gRPC stream: gm, gr, gt or gc, with its number.
func (v *VM) GRPC(when string, token, n uint32) {
	c := &grpcCall{name: "unknown"}
	for _, open := range v.calls {
		if open.token == token {
			c = open // the latest of that token
		}
	}
	line := when + " " + c.name + " " + strconv.Itoa(int(n))
	switch when {
	case "gr":
		b, _ := v.h.Buffer(bufferGRPC, 0, 20)
		line += " " + show(b)
	case "gc":
		code, text := v.h.GetStatus()
		line += " status " + strconv.Itoa(int(code)) + " " + text[:min(len(text), 58)] // what follows depends on the version
	}
	v.log(c.id, line)
	if c.ops == nil {
		return
	}
	c.count[when]++
	what, ok := c.ops[when+strconv.Itoa(c.count[when])]
	if !ok {
		what = c.ops[when]
	}
	v.run(when, c.id, what)
}

func (v *VM) run(when string, id uint32, what string) (action uint32, ok bool) {
	ok = true
	if what == "" {
		return
	}
	for _, op := range strings.Split(what, ",") {
		a := strings.Split(op, ":")
		switch a[0] {
		case "pause":
			action = 1
		case "action":
			action = num(a, 1)
		case "false":
			ok = false
		default:
			v.log(id, when+": "+op+" = "+v.do(id, a))
		}
	}
	return action, ok
}

func (v *VM) log(id uint32, line string) {
	if s := v.streams[id]; s != nil {
		line = s.name + line
	}
	v.h.Log(logInfo, line)
}

// others are the streams but one, in the order of their beginning.
func (v *VM) others(id uint32) []uint32 {
	var ids []uint32
	for other := range v.streams {
		if other != id {
			ids = append(ids, other)
		}
	}
	slices.Sort(ids)
	return ids
}

func num(a []string, i int) uint32 {
	if i >= len(a) {
		return 0
	}
	n, _ := strconv.ParseUint(a[i], 0, 32)
	return uint32(n)
}

func arg(a []string, i int) string {
	if i >= len(a) {
		return ""
	}
	return a[i]
}

var names = []string{"Ok", "NotFound", "BadArgument", "SerializationFailure", "ParseFailure", "5", "InvalidMemoryAccess", "Empty", "CasMismatch", "9", "InternalFailure", "BrokenConnection", "Unimplemented"}

func st(s uint32) string {
	if int(s) < len(names) {
		return names[s]
	}
	return strconv.Itoa(int(s))
}

func stv(s uint32, value string) string {
	if s != 0 {
		return st(s)
	}
	return st(s) + " " + value
}

// show makes a value readable: text as it is, anything else as hex bytes.
func show(b []byte) string {
	for _, c := range b {
		if c < ' ' || c > '~' {
			const hex = "0123456789abcdef"
			out := make([]byte, 0, 2+2*len(b))
			out = append(out, "0x"...)
			for _, c := range b {
				out = append(out, hex[c>>4], hex[c&15])
			}
			return string(out)
		}
	}
	return string(b)
}

func manyPairs(n int) [][2]string {
	pairs := make([][2]string, n)
	for i := range pairs {
		pairs[i] = [2]string{"x-many-" + strconv.Itoa(i), "v"}
	}
	return pairs
}

func dig(n int) int {
	if n == 0 {
		return 0
	}
	return dig(n-1) + 1
}

var sink []byte

// EndOf is on_done, of a stream or of the plugin.
func (v *VM) EndOf(id uint32) bool {
	if v.streams[id] != nil {
		v.Stream("sdone", id, 0, false)
		return true
	}
	return v.Plugin("done")
}
