package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/oncegate/oncegate/manager/api"
)

// ledgerStreams makes the calls of ledgerCalls on a gRPC stream for each connection: so many are sent together, and the next ones
// when all of them have their replies. What it says of HTTP/2 is enough for that: the calls that are sent together fit into the windows
// of a connection (64 KiB), and the replies of a measurement into one window of 2 GiB.
type ledgerStreams struct {
	calls    ledgerCalls
	together int
	scratch  []byte
	frames   []byte
}

// Frames of HTTP/2 (RFC 9113, 6).
const (
	frameHeader = 9

	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameSettings     = 4
	frameGoAway       = 7
	frameWindowUpdate = 8

	flagEndStream, flagAck = 1, 1
	flagEndHeaders         = 4

	settingWindow = 4
	maxFrame      = 16 << 10
)

func appendFrame(dst []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	dst = append(dst, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	return append(binary.BigEndian.AppendUint32(dst, stream), payload...)
}

// streamHead is the block of headers that opens the stream (RFC 7541): fields of the static table, and literals.
var streamHead = func() []byte {
	text := func(dst []byte, s string) []byte { return append(append(dst, byte(len(s))), s...) }
	head := []byte{0x83, 0x86}                                 // :method POST, :scheme http
	head = text(append(head, 0x04), api.PathCalls)             // :path
	head = text(append(head, 0x01), "m")                       // :authority
	head = text(append(head, 0x0f, 31-15), "application/grpc") // content-type
	return text(text(append(head, 0x00), "te"), "trailers")
}()

func (l *ledgerStreams) request(dst []byte, conn, n int) []byte {
	switch n {
	case 0:
		dst = append(dst, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"...)
		dst = appendFrame(dst, frameSettings, 0, 0, binary.BigEndian.AppendUint32([]byte{0, settingWindow}, math.MaxInt32))
		dst = appendFrame(dst, frameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, math.MaxInt32-65535))
		dst = appendFrame(dst, frameHeaders, flagEndHeaders, 1, streamHead)
	case 1:
		dst = appendFrame(dst, frameSettings, flagAck, 0, nil)
	}
	data := l.frames[:0]
	for i := range l.together {
		l.calls.scratch = l.calls.message(l.calls.scratch[:0], leanOp(n), conn, n/2*l.together+i)
		l.scratch = api.AppendStreamCall(l.scratch[:0], uint64(i+1), leanOp(n), nil, l.calls.scratch)
		if len(data)+5+len(l.scratch) > maxFrame {
			dst, data = appendFrame(dst, frameData, 0, 1, data), data[:0]
		}
		data = append(binary.BigEndian.AppendUint32(append(data, 0), uint32(len(l.scratch))), l.scratch...)
	}
	l.frames = data
	return appendFrame(dst, frameData, 0, 1, data)
}

func (l *ledgerStreams) answer(b []byte) (int, error) {
	rest, data, replies := b, l.frames[:0], 0
	for replies < l.together {
		if len(rest) < frameHeader {
			return 0, nil
		}
		size, kind, flags := int(rest[0])<<16|int(rest[1])<<8|int(rest[2]), rest[3], rest[4]
		if len(rest) < frameHeader+size {
			return 0, nil
		}
		switch {
		case kind == frameReset || kind == frameGoAway || kind == frameHeaders && flags&flagEndStream != 0:
			return 0, fmt.Errorf("manager: the stream ended: frame %d, %q", kind, rest[frameHeader:frameHeader+size])
		case kind == frameData:
			data = append(data, rest[frameHeader:frameHeader+size]...)
		}
		rest = rest[frameHeader+size:]
		for len(data) >= 5 && len(data)-5 >= int(binary.BigEndian.Uint32(data[1:])) {
			end := 5 + int(binary.BigEndian.Uint32(data[1:]))
			var r api.StreamReply
			if err := r.View(data[5:end]); err != nil {
				return 0, err
			}
			if r.Status > 299 {
				return 0, fmt.Errorf("manager: a call got %d %s", r.Status, r.Body)
			}
			replies++
			data = data[end:]
		}
	}
	return len(b) - len(rest), nil
}
