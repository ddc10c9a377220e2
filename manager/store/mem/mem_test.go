package mem

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/store"
)

func TestRecordsSurviveReopening(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	for round := 0; round < 3; round++ {
		s, err := Open(ctx, dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		n, _ := s.Len(ctx, "c", "")
		if n != round*800 {
			t.Fatal(n)
		}
		var wg sync.WaitGroup
		for g := 0; g < 8; g++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := 0; i < 100; i++ {
					err := s.Update(ctx, func(tx store.Tx) error {
						return tx.Put("c", fmt.Sprintf("k%d-%d-%d", round, g, i), []byte("v"), store.Entry{Index: "i", SortKey: fmt.Sprint(i)})
					})
					if err != nil {
						t.Error(err)
					}
				}
			}()
		}
		wg.Wait()
		if round == 1 {
			if err := s.Snapshot(ctx); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%+v %+v", s.log.Stats(), s.log.Recovery())
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
