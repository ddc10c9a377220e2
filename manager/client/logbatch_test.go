package client

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/client/internal/wire"
)

// Answers in the form of a manager are read without reflection, and every answer that is read so means the same to
// the reader of any answer.
func TestAnswersToABatchAreReadAlike(t *testing.T) {
	batch := []*write{{id: "a"}, {id: `b"\é` + "\n"}}
	log := &Log{name: `l"g`}
	result := func(status int, entry uint64, id, more string) string {
		b, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"status":%d,"log":"l\"g","segment":1,"entry":%d,"id":%s%s}`, status, entry, b, more)
	}
	good := `{"results":[` + result(201, 1, "a", "") + "," + result(200, 999999999999999999, `b"\é`+"\n", `,"duplicate":true`) + `]}`
	if !log.readResults([]byte(good), batch, make([]WriteResult, 2)) {
		t.Errorf("it does not read %s", good)
	}
	fast := 0
	check := func(answer string) {
		quick, slow := make([]WriteResult, 2), make([]WriteResult, 2)
		read := log.readResults([]byte(answer), batch, quick)
		err := readAnyResults(&wire.Call{}, []byte(answer), batch, slow)
		if read && (err != nil || !reflect.DeepEqual(quick, slow)) {
			t.Errorf("%s: %+v, and %+v, %v", answer, quick, slow, err)
		}
		if read {
			fast++
		}
	}
	check(good)
	for i := range good { // what is cut short, and what has another byte
		check(good[:i])
		for _, c := range `"\{}[],:0129x ` + "\x00\x80" {
			check(good[:i] + string(c) + good[i+1:])
			check(good[:i] + string(c) + good[i:])
		}
	}
	for _, change := range []string{`"status":422,"code":"x"`, `"status":201,"status":200`, `"status":2001`, `"status":"201"`} {
		check(strings.Replace(good, `"status":201`, change, 1))
	}
	for _, entry := range []string{"0", "01", "-1", "1.0", "1e3", "null", "18446744073709551616", "9999999999999999999", ""} {
		check(strings.Replace(good, `"entry":1,`, `"entry":`+entry+`,`, 1))
	}
	if fast < 10 {
		t.Errorf("only %d answers are read quickly", fast)
	}
}
