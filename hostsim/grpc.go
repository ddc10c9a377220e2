package hostsim

import (
	"context"
	"encoding/binary"
)

// GRPCCluster is a Cluster that also carries gRPC streams.
type GRPCCluster interface {
	Cluster
	// OpenStream begins a stream. It must not block, because guests open streams on a worker's loop. Events may come
	// from any goroutine, also before OpenStream returns, until Close, which is the last one. ctx ends when the stream is
	// no longer needed (reset by the guest, plugin gone, host closed); no event is needed after that.
	//
	// An error means that there is no stream and that no event comes. It is for a cluster without a healthy host
	// (ErrNoHealthyHost) or with a full circuit breaker (ErrCircuitBreaker). The guest gets what Envoy gives it: metadata
	// and trailers of a failed stream inside its own call, then InternalFailure, and the close callback after the running
	// one, all with a token that it does not know.
	OpenStream(ctx context.Context, req StreamRequest, events StreamEvents) (GRPCStream, error)
}

// StreamRequest is a gRPC stream as the guest asked for it.
type StreamRequest struct {
	Cluster string // the name that the guest called it by
	Thread  string // the thread of the VM that opens it: "main" or "worker-N"
	Service string // with its package, as in "oncegate.v1.Ledger"
	Method  string
	// Authority is the service's authority; the cluster's name if the guest chose none.
	Authority string
	Metadata  Headers // initial metadata of the guest
}

// StreamEvents are the host's functions for what a stream's server does. They keep what they are given.
type StreamEvents struct {
	Metadata func(Headers) // the response headers, with :status; empty if the stream ends with them
	Message  func([]byte)  // one message, without its frame
	Trailers func(Headers) // trailing metadata; comes before every Close, and is empty if the stream broke
	// Close ends the stream: a gRPC status and its text, see StreamText.
	Close func(status int, message string)
}

// Fail ends a stream whose connection failed, with the events, statuses and texts of Envoy: 14 before response headers, 13
// after them. detail is a cause like "delayed connect error: Connection refused", and may be empty.
func (e StreamEvents) Fail(f UpstreamFailure, detail string, started bool) {
	trailers, status, message := f.endsStream(detail, started)
	if !started {
		e.Metadata(nil)
	}
	e.Trailers(trailers)
	e.Close(status, message)
}

func (f UpstreamFailure) endsStream(detail string, started bool) (trailers Headers, status int, message string) {
	r := f.reply(detail, started)
	if started {
		return nil, grpcCodeInternal, r.details
	}
	text := string(r.body)
	trailers = append(H(":status", "200"), r.headers...)
	trailers = append(trailers, H("content-type", "application/grpc", "grpc-status", "14", "grpc-message", text)...)
	return trailers, grpcCodeUnavailable, StreamText(text, r.details)
}

// StreamText is the text of an ended stream as Envoy shows it to a guest: the server's grpc-message as it is, and
// details, which say who ended the stream. They are "via_upstream" if a server did.
func StreamText(message, details string) string {
	if message == "" {
		return details
	}
	return message + "{" + details + "}"
}

// GRPCStream is the client's side of an open stream. Its methods are called on one goroutine and must not block.
type GRPCStream interface {
	// Send sends a message, which the stream keeps. With end it is the last one. A nil message with end ends the client's
	// side without a message.
	Send(message []byte, end bool)
	// Reset cuts the stream. No event is needed after that.
	Reset()
}

// gRPC statuses that the host itself uses.
const (
	grpcCodeUnknown           = 2
	grpcCodeResourceExhausted = 8
	grpcCodeInternal          = 13
	grpcCodeUnavailable       = 14
)

// grpcService reads a serialized envoy.config.core.v3.GrpcService. malformed says that it is no such message at all.
func grpcService(b []byte) (cluster, authority string, malformed bool) {
	ok := protoFields(b, func(field int, value []byte) bool {
		if field != 1 { // envoy_grpc
			return true
		}
		return protoFields(value, func(field int, value []byte) bool {
			switch field {
			case 1:
				cluster = string(value)
			case 2:
				authority = string(value)
			}
			return true
		})
	})
	return cluster, authority, !ok
}

// protoFields calls f for every length-delimited field of a serialized message, and skips the others. It returns false
// if the message is malformed or f returned false.
func protoFields(b []byte, f func(field int, value []byte) bool) bool {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 || key>>3 == 0 || key>>3 > 1<<29-1 {
			return false
		}
		b = b[n:]
		size := uint64(0)
		switch key & 7 {
		case 0: // a number
			if _, n = binary.Uvarint(b); n <= 0 {
				return false
			}
			size = uint64(n)
		case 1:
			size = 8
		case 2:
			if size, n = binary.Uvarint(b); n <= 0 {
				return false
			}
			b = b[n:]
		case 5:
			size = 4
		default:
			return false
		}
		if size > uint64(len(b)) {
			return false
		}
		if key&7 == 2 && !f(int(key>>3), b[:size]) {
			return false
		}
		b = b[size:]
	}
	return true
}
