package request

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/plugin/config"
)

// twiceInBody is what is wrong with a name that an object has more than once: the gate and the upstream could take
// different values for the same one.
const twiceInBody = "there more than once; allowed: once"

// jsonAt returns the value at a path of a valid JSON body, and whether a name on the way is in its object more than once.
func jsonAt(body []byte, path string) (v gjson.Result, twice bool) {
	// The results that leave this function are copies.
	v = gjson.Parse(unsafe.String(unsafe.SliceData(body), len(body)))
	for _, name := range config.Segments(path) {
		n := 0
		switch at := v; {
		case at.IsObject():
			v = gjson.Result{}
			at.ForEach(func(member, value gjson.Result) bool {
				if member.Str == name {
					n, v = n+1, value
				}
				return n < 2
			})
		case at.IsArray():
			v = gjson.Result{}
			index, err := strconv.ParseUint(name, 10, 31)
			if err != nil {
				return v, false
			}
			at.ForEach(func(_, value gjson.Result) bool {
				if index == 0 {
					n, v = 1, value
				}
				index--
				return n == 0
			})
		default:
			return gjson.Result{}, false
		}
		if n != 1 {
			return gjson.Result{}, n > 1
		}
	}
	v.Str, v.Raw = strings.Clone(v.Str), strings.Clone(v.Raw)
	return v, false
}
