package request

// Headers are a request's headers as the host hands them over: lower-case
// names, pseudo headers (:method, :path, :authority) included, in order.
type Headers [][2]string

// Get returns the first value of a header and the number of its values. name must be
// in lower case.
func (h Headers) Get(name string) (value string, count int) {
	for i := range h {
		if h[i][0] == name {
			if count == 0 {
				value = h[i][1]
			}
			count++
		}
	}
	return value, count
}
