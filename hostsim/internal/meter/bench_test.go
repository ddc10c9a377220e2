package meter

import (
	"context"
	"testing"

	"github.com/tetratelabs/wazero"
)

// BenchmarkBound compares the ways to bound a module's work: not at all, by the counter, and by the engine's own
// interruption. One call makes one iteration of a loop, the other 100,000.
func BenchmarkBound(b *testing.B) {
	plain := code(sum)
	metered, err := Instrument(plain, 1<<62)
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name      string
		module    []byte
		interrupt bool
	}{{"unbounded", plain, false}, {"counter", metered, false}, {"interruption", plain, true}} {
		ctx, cancel := context.WithCancel(context.Background())
		r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCloseOnContextDone(way.interrupt))
		m, err := r.Instantiate(ctx, way.module)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range []struct {
			name  string
			times uint64
		}{{"call", 1}, {"loop", 100_000}} {
			b.Run(way.name+"/"+c.name, func(b *testing.B) {
				f := m.ExportedFunction("f0")
				for range b.N {
					if _, err := f.Call(ctx, c.times); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		_ = r.Close(ctx)
		cancel()
	}
}
