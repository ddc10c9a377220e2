package hostsim

import (
	"context"

	"github.com/tetratelabs/wazero/api"
)

// restriction says which kind of guest code is running.
type restriction uint8

const (
	unrestricted  restriction = 0
	duringStart   restriction = 1 << 0
	duringMalloc  restriction = 1 << 1
	alwaysAllowed             = duringStart | duringMalloc
)

// hostFunction is one import: its type, its code, and the restricted phases in which it may be called. The code reads
// its arguments from a and returns a status (or WASI errno); entry passes that to the engine.
type hostFunction struct {
	params, results []api.ValueType
	allowed         restriction
	run             func(g *wasmGuest, a args) uint32
}

// args are a host function's arguments as the engine passes them.
type args []uint64

func (a args) u32(i int) uint32 { return uint32(a[i]) }

func (f hostFunction) entry(module, name string) api.GoModuleFunc {
	return func(ctx context.Context, _ api.Module, stack []uint64) {
		g := guestOf(ctx)
		if g.restricted&^f.allowed != 0 {
			panic(trapError(module + "." + name + " called while only logging is allowed (from the module's initialisation or its allocator)"))
		}
		result := f.run(g, stack)
		if len(f.results) > 0 {
			stack[0] = uint64(result)
		}
	}
}

// bytes returns a view of guest memory, or false when a part is out of bounds. The view is valid until the guest runs
// again.
func (g *wasmGuest) bytes(ptr, size uint32) ([]byte, bool) {
	if g.mem == nil {
		return nil, false
	}
	return g.mem.Read(ptr, size)
}

// str returns a copy of guest memory.
func (g *wasmGuest) str(ptr, size uint32) (string, bool) {
	b, ok := g.bytes(ptr, size)
	return string(b), ok
}

func (g *wasmGuest) put32(ptr, v uint32) bool { return g.mem != nil && g.mem.WriteUint32Le(ptr, v) }
func (g *wasmGuest) put64(ptr uint32, v uint64) bool {
	return g.mem != nil && g.mem.WriteUint64Le(ptr, v)
}

// allocate asks the guest for memory. A trap there is a trap of the running callback.
func (g *wasmGuest) allocate(size uint32) (uint32, bool) {
	was := g.restricted
	g.restricted |= duringMalloc
	g.astack[0] = uint64(size)
	err := g.alloc.CallWithStack(g.ctx, g.astack[:])
	g.restricted = was
	if err != nil {
		panic(err)
	}
	ptr := uint32(g.astack[0])
	if ptr == 0 {
		return 0, false
	}
	_, ok := g.bytes(ptr, size)
	return ptr, ok
}

// handOver answers a call: unless it failed, it copies a value into memory that the guest allocates, and writes pointer and size where the guest asked for
// them. An empty value is a null pointer without an allocation.
func handOver[T string | []byte](g *wasmGuest, value T, st Status, ptrPtr, sizePtr uint32) Status {
	if st != StatusOK {
		return st
	}
	ptr := uint32(0)
	if len(value) > 0 {
		var ok bool
		if ptr, ok = g.allocate(uint32(len(value))); !ok {
			return StatusInvalidMemoryAccess
		}
		b, _ := g.mem.Read(ptr, uint32(len(value)))
		copy(b, value)
	}
	return g.putPtrSize(ptr, uint32(len(value)), ptrPtr, sizePtr)
}

// handOverPairs copies a header map into memory of the guest.
func handOverPairs(g *wasmGuest, h Headers, st Status, ptrPtr, sizePtr uint32) Status {
	if st != StatusOK {
		return st
	}
	if len(h) == 0 {
		return g.putPtrSize(0, 0, ptrPtr, sizePtr)
	}
	size := uint32(pairsSize(h))
	ptr, ok := g.allocate(size)
	if !ok {
		return StatusInvalidMemoryAccess
	}
	b, _ := g.mem.Read(ptr, size)
	marshalPairs(h, b)
	return g.putPtrSize(ptr, size, ptrPtr, sizePtr)
}

func (g *wasmGuest) putPtrSize(ptr, size, ptrPtr, sizePtr uint32) Status {
	if !g.put32(ptrPtr, ptr) || !g.put32(sizePtr, size) {
		return StatusInvalidMemoryAccess
	}
	return StatusOK
}
