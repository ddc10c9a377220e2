package gate

// list is a list of streams in the order in which they joined. A stream is in one list at
// most.
type list struct {
	first, last *Stream
	size        int
}

// links is a stream's position in a list.
type links struct {
	list           *list // nil: in none
	previous, next *Stream
}

// add puts a stream that is in no list at the end.
func (l *list) add(s *Stream) {
	s.links = links{list: l, previous: l.last}
	if l.last == nil {
		l.first = s
	} else {
		l.last.next = s
	}
	l.last = s
	l.size++
}

// remove takes a stream out if it is in the list.
func (l *list) remove(s *Stream) {
	if s.list != l {
		return
	}
	if s.previous == nil {
		l.first = s.next
	} else {
		s.previous.next = s.next
	}
	if s.next == nil {
		l.last = s.previous
	} else {
		s.next.previous = s.previous
	}
	s.links = links{}
	l.size--
}
