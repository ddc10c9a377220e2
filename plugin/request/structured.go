package request

// ParseStructured splits {client_id}:{sequence}:{nonce} from the right, so that
// the client id may contain colons. The client id has at least one byte, the
// sequence is a decimal number below 2^64 without leading zeros, and the nonce has
// 16 hex digits. ok is false if s does not have this form; it may still be a plain
// key.
func ParseStructured(s string) (client string, sequence uint64, nonce string, ok bool) {
	const nonceChars = 16
	at := len(s) - nonceChars - 1 // the colon before the nonce
	if at < 3 || s[at] != ':' {
		return "", 0, "", false
	}
	nonce = s[at+1:]
	for i := 0; i < nonceChars; i++ {
		c := nonce[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return "", 0, "", false
		}
	}
	start := at
	for start > 0 && s[start-1] >= '0' && s[start-1] <= '9' {
		start--
	}
	digits := s[start:at]
	// One spelling per number: no leading zeros, and it fits into 64 bits.
	if len(digits) == 0 || len(digits) > 20 || (digits[0] == '0' && len(digits) > 1) {
		return "", 0, "", false
	}
	for i := 0; i < len(digits); i++ {
		v := uint64(digits[i] - '0')
		if sequence > (1<<64-1-v)/10 {
			return "", 0, "", false
		}
		sequence = sequence*10 + v
	}
	if start < 2 || s[start-1] != ':' {
		return "", 0, "", false
	}
	return s[:start-1], sequence, nonce, true
}
