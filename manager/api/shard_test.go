package api

import (
	"strconv"
	"testing"
)

// The owners below were computed once and must never change: gates and managers of different versions
// must agree.
func TestOwnerIsFixed(t *testing.T) {
	shards := []string{"oncegate_manager_0", "oncegate_manager_1", "oncegate_manager_2"}
	got := ""
	for i := range 32 {
		got += strconv.Itoa(Owner(shards, "scope", "key-"+strconv.Itoa(i)))
	}
	if want := "11121012110200210220021221221202"; got != want {
		t.Errorf("owners %s, want %s", got, want)
	}
	if Owner(nil, "", "k") != -1 || Owner(shards[:1], "", "k") != 0 {
		t.Error("none and one")
	}
}

func TestOwnerIsFair(t *testing.T) {
	var shards []string
	for i := range 5 {
		shards = append(shards, "shard-"+strconv.Itoa(i))
	}
	const keys = 50000
	count := make([]int, 5)
	moved := 0
	for i := range keys {
		key := strconv.Itoa(i)
		o := Owner(shards, "s", key)
		count[o]++
		four := Owner(shards[:4], "s", key)
		if o != 4 && four != o {
			t.Fatalf("key %s moves from shard %d to %d, which is not the new one", key, four, o)
		}
		if o == 4 {
			moved++
		}
		if swapped := []string{shards[3], shards[0], shards[4], shards[2], shards[1]}; swapped[Owner(swapped, "s", key)] != shards[o] {
			t.Fatalf("key %s: the owner depends on the order", key)
		}
	}
	for i, n := range count {
		if n < keys/5*9/10 || n > keys/5*11/10 {
			t.Errorf("shard %d owns %d of %d keys", i, n, keys)
		}
	}
}
