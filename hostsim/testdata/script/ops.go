package script

import (
	"strconv"
	"strings"
)

// do runs one op in context id and returns what it found out.
func (v *VM) do(id uint32, a []string) string {
	h := v.h
	switch a[0] {
	case "log":
		return st(h.Log(num(a, 1), arg(a, 2)))
	case "trap":
		panic("as the script says")
	case "loop":
		for i := 0; ; i++ {
			if len(sink) > i && i < 0 {
				return ""
			}
		}
	case "recurse":
		return strconv.Itoa(dig(int(num(a, 1))))
	case "hog": // keeps so many MiB
		for range num(a, 1) {
			sink = append(sink, make([]byte, 1<<20)...)
		}
		return strconv.Itoa(len(sink))

	case "resume":
		return st(h.Continue(num(a, 1)))
	case "close":
		return st(h.Close(num(a, 1)))
	case "reply": // code, body, details, grpc status, name, value
		grpc := int32(-1)
		if arg(a, 4) != "" {
			grpc = int32(num(a, 4))
		}
		var headers [][2]string
		for i := 5; i+1 < len(a); i += 2 {
			headers = append(headers, [2]string{a[i], a[i+1]})
		}
		return st(h.Reply(num(a, 1), arg(a, 3), []byte(arg(a, 2)), headers, grpc))
	case "effective":
		if arg(a, 1) == "self" {
			return st(h.Effective(id))
		}
		return st(h.Effective(num(a, 1)))
	case "others": // an op, done in the name of every other stream; what the last one answered
		last := ""
		for _, other := range v.others(id) {
			h.Effective(other)
			last = v.do(other, a[1:])
		}
		h.Effective(id)
		return last
	case "done":
		return st(h.Done())
	case "foreign":
		return st(h.Foreign(arg(a, 1)))
	case "status":
		code, text := h.GetStatus()
		return strconv.Itoa(int(code)) + " " + text

	case "get":
		value, s := h.Get(num(a, 1), sub(a, 2, ":"))
		return stv(s, value)
	case "pairs":
		pairs, s := h.Pairs(num(a, 1))
		if arg(a, 2) == "names" {
			text := make([]string, len(pairs))
			for i, p := range pairs {
				text[i] = p[0]
			}
			return stv(s, strings.Join(text, " "))
		}
		return stv(s, strconv.Itoa(len(pairs)))
	case "size":
		n, s := h.Size(num(a, 1))
		return stv(s, strconv.Itoa(int(n)))
	case "add":
		return st(h.Add(num(a, 1), arg(a, 2), sub(a, 3, ":")))
	case "replace":
		return st(h.Replace(num(a, 1), arg(a, 2), sub(a, 3, ":")))
	case "replacepath":
		return st(h.Replace(mapRequestHeaders, ":path", arg(a, 1)))
	case "remove":
		return st(h.Remove(num(a, 1), arg(a, 2)))
	case "setpairs": // map, number of pairs
		return st(h.SetPairs(num(a, 1), manyPairs(int(num(a, 2)))))

	case "buffer":
		b, s := h.Buffer(num(a, 1), num(a, 2), num(a, 3))
		return stv(s, show(b))
	case "buffersize":
		n, s := h.BufferSize(num(a, 1))
		return stv(s, strconv.Itoa(int(n)))
	case "setbuffer":
		return st(h.SetBuffer(num(a, 1), num(a, 2), num(a, 3), []byte(arg(a, 4))))
	case "fillbuffer": // buffer, bytes
		return st(h.SetBuffer(num(a, 1), 0, 0xffffffff, make([]byte, num(a, 2))))

	case "prop":
		b, s := h.GetProperty(strings.ReplaceAll(arg(a, 1), ".", "\x00"))
		return stv(s, show(b))
	case "setprop":
		return st(h.SetProperty(strings.ReplaceAll(arg(a, 1), ".", "\x00"), []byte(arg(a, 2))))

	case "call": // cluster, timeout in ms, what is left out of the headers, body
		headers := [][2]string{{":method", "POST"}, {":path", "/call"}, {":authority", "callee"}}
		if n := arg(a, 3); n == "many" {
			headers = append(headers, manyPairs(1022)...)
		} else if n != "" {
			kept := headers[:0]
			for _, p := range headers {
				if p[0] != ":"+n {
					kept = append(kept, p)
				}
			}
			headers = kept
		}
		token, s := h.Call(arg(a, 1), headers, []byte(arg(a, 4)), nil, num(a, 2))
		if s == 0 {
			v.callers[token] = id
		}
		return stv(s, strconv.Itoa(int(token)))

	case "gopen": // the stream's name, cluster, then name and value of metadata
		cluster := arg(a, 2)
		service := append([]byte{0x0a, byte(len(cluster) + 2), 0x0a, byte(len(cluster))}, cluster...)
		return v.grpcOpen(id, arg(a, 1), service, a[min(3, len(a)):])
	case "graw": // the stream's name, the service's serialized form as text
		return v.grpcOpen(id, arg(a, 1), []byte(arg(a, 2)), nil)
	case "gsend": // a message
		return st(h.GRPCSend(v.grpcToken(a), []byte(arg(a, 2)), false))
	case "gend": // the last message
		return st(h.GRPCSend(v.grpcToken(a), []byte(arg(a, 2)), true))
	case "gfill": // a message of so many bytes
		return st(h.GRPCSend(v.grpcToken(a), make([]byte, num(a, 2)), false))
	case "gclose":
		return st(h.GRPCClose(v.grpcToken(a)))
	case "gcancel":
		return st(h.GRPCCancel(v.grpcToken(a)))

	case "sdget":
		b, cas, s := h.SharedGet(arg(a, 1))
		if s == 0 && arg(a, 2) == "cas" {
			return stv(s, show(b)+" cas "+strconv.Itoa(int(cas)))
		}
		return stv(s, show(b))
	case "sdset":
		return st(h.SharedSet(arg(a, 1), []byte(arg(a, 2)), num(a, 3)))
	case "sdfill": // key, bytes
		return st(h.SharedSet(arg(a, 1), make([]byte, num(a, 2)), 0))
	case "sdcas": // reads, then writes with the CAS that it read
		_, cas, s := h.SharedGet(arg(a, 1))
		if s != 0 {
			return st(s)
		}
		return st(h.SharedSet(arg(a, 1), []byte(arg(a, 2)), cas))
	case "sdcount": // adds 1 to a number, as often as it takes
		for {
			b, cas, s := h.SharedGet(arg(a, 1))
			if s != 0 {
				cas = 0xffffffff
			}
			n, _ := strconv.Atoi(string(b))
			if s = h.SharedSet(arg(a, 1), []byte(strconv.Itoa(n+1)), cas); s == 0 {
				return stv(s, strconv.Itoa(n+1))
			}
		}

	case "qreg":
		token, s := h.QueueRegister(arg(a, 1))
		return stv(s, strconv.Itoa(int(token)))
	case "qres":
		token, s := h.QueueResolve(arg(a, 1), arg(a, 2))
		return stv(s, strconv.Itoa(int(token)))
	case "enq": // queue name, item
		token, s := h.QueueResolve("", arg(a, 1))
		if s != 0 {
			return st(s)
		}
		return st(h.Enqueue(token, []byte(arg(a, 2))))
	case "enqid":
		return st(h.Enqueue(num(a, 1), []byte(arg(a, 2))))
	case "deq":
		token, s := h.QueueResolve("", arg(a, 1))
		if s != 0 {
			return st(s)
		}
		b, s := h.Dequeue(token)
		return stv(s, show(b))
	case "deqid":
		_, s := h.Dequeue(num(a, 1))
		return st(s)

	case "define": // type, name
		token, s := h.Define(num(a, 1), arg(a, 2))
		if s == 0 {
			v.metrics[arg(a, 2)] = token
		}
		return stv(s, strconv.Itoa(int(token)))
	case "inc": // name, offset
		n, _ := strconv.ParseInt(arg(a, 2), 10, 64)
		return st(h.Increment(v.metric(a), n))
	case "record":
		return st(h.Record(v.metric(a), uint64(num(a, 2))))
	case "metric":
		n, s := h.Metric(v.metric(a))
		return stv(s, strconv.FormatUint(n, 10))

	case "tick":
		return st(h.Tick(num(a, 1)))
	case "time":
		return strconv.FormatUint(h.Time(), 10)
	}
	return "unknown op"
}

// metric is a metric's id, by the name it was defined with here, or as a number.
func (v *VM) metric(a []string) uint32 {
	if id, ok := v.metrics[arg(a, 1)]; ok {
		return id
	}
	return num(a, 1)
}

// sub joins the arguments from i on, for values that hold the separator.
func sub(a []string, i int, sep string) string {
	if i >= len(a) {
		return ""
	}
	return strings.Join(a[i:], sep)
}

// grpcOpen opens a gRPC stream and remembers its token and the script that runs in its callbacks.
func (v *VM) grpcOpen(id uint32, name string, service []byte, pairs []string) string {
	var metadata [][2]string
	for i := 0; i+1 < len(pairs); i += 2 {
		metadata = append(metadata, [2]string{pairs[i], pairs[i+1]})
	}
	token, s := v.h.GRPCStream(service, "test.Service", "Call", metadata)
	if s == 0 {
		c := &grpcCall{name: name, token: token, id: id, ops: v.plugin, count: map[string]int{}}
		if r := v.streams[id]; r != nil {
			c.ops = r.ops
		}
		v.calls = append(v.calls, c)
	}
	return stv(s, strconv.Itoa(int(token&3)))
}

// grpcToken is a stream's token, by the name it was opened with here, or as a number.
func (v *VM) grpcToken(a []string) uint32 {
	for i := len(v.calls) - 1; i >= 0; i-- {
		if v.calls[i].name == arg(a, 1) {
			return v.calls[i].token
		}
	}
	return num(a, 1)
}
