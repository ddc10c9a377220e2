package hostsim_test

import (
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// nullSink takes everything and tells when the message is over.
type nullSink struct{ end func() }

func (s nullSink) Headers(_ hostsim.Headers, end bool) { s.over(end) }
func (s nullSink) Data(_ []byte, end bool)             { s.over(end) }
func (s nullSink) Trailers(hostsim.Headers)            { s.over(true) }
func (s nullSink) Reset(hostsim.ResetReason)           {}

func (s nullSink) over(end bool) {
	if end && s.end != nil {
		s.end()
	}
}

// BenchmarkStream is a whole exchange: request headers, an answer of headers and one
// piece of body, log, done, delete. The host's share is what native shows; wasm adds
// the boundary and the guest.
func BenchmarkStream(b *testing.B) {
	sources := map[string]func(*testing.B) hostsim.Source{
		"native": func(*testing.B) hostsim.Source {
			return hostsim.Native(func(hostsim.HostCalls) hostsim.Guest { return hostsim.DefaultGuest{} })
		},
		"wasm": func(b *testing.B) hostsim.Source { return guestSource(b, "sdk") },
	}
	for _, name := range []string{"native", "wasm"} {
		b.Run(name, func(b *testing.B) {
			h := hostsimtest.Start(b, hostsim.Config{Guest: sources[name](b)})
			headers := hostsimtest.Get("/bench", "user-agent", "bench", "accept", "*/*")
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				var s *hostsim.Stream
				answer := func() {
					s.ResponseHeaders(hostsim.H(":status", "200", "content-length", "5"), false)
					s.ResponseData([]byte("hello"), true)
				}
				var err error
				s, err = h.NewStream(hostsim.StreamOptions{Upstream: nullSink{answer}, Downstream: nullSink{}})
				if err != nil {
					b.Fatal(err)
				}
				s.RequestHeaders(headers.Clone(), true)
				<-s.Done()
			}
		})
	}
}
