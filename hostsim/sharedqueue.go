package hostsim

import "sync"

// sharedQueues are the process-wide queues. A queue is named by vm_id and name, and addressed by a number that is never
// reused.
type sharedQueues struct {
	mu     sync.Mutex
	byName map[queueName]uint32
	queues map[uint32]*sharedQueue
	last   uint32
}

type queueName struct{ vmID, name string }

type sharedQueue struct {
	items [][]byte
	bytes int
	// The thread and root context that registered last. The callback goes to the VM that lives on that thread at
	// delivery, which may be another than the one that registered: the VM after the canary, or a reloaded VM.
	thread  *thread
	context uint32
}

func newSharedQueues() *sharedQueues {
	return &sharedQueues{byName: make(map[queueName]uint32), queues: make(map[uint32]*sharedQueue)}
}

// register creates the queue, or moves it to this thread; its items stay.
func (q *sharedQueues) register(vmID, name string, t *thread, context uint32) (uint32, Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	key := queueName{vmID, name}
	id, ok := q.byName[key]
	if !ok {
		if len(q.queues) >= queuesLimit || len(name) > nameLimit {
			return 0, StatusInternalFailure
		}
		q.last++
		id = q.last
		q.byName[key] = id
		q.queues[id] = &sharedQueue{}
	}
	q.queues[id].thread, q.queues[id].context = t, context
	return id, StatusOK
}

func (q *sharedQueues) resolve(vmID, name string) (uint32, Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id, ok := q.byName[queueName{vmID, name}]
	if !ok {
		return 0, StatusNotFound
	}
	return id, StatusOK
}

// enqueue copies item and posts the event for the owner's VM.
func (q *sharedQueues) enqueue(id uint32, item []byte) Status {
	q.mu.Lock()
	sq, ok := q.queues[id]
	if !ok {
		q.mu.Unlock()
		return StatusNotFound
	}
	if len(sq.items) >= queueLimit || sq.bytes+len(item) > queueBytesLimit {
		q.mu.Unlock()
		return StatusInternalFailure
	}
	stored := append([]byte{}, item...)
	sq.items = append(sq.items, stored)
	sq.bytes += len(stored)
	t, context := sq.thread, sq.context
	q.mu.Unlock()
	t.loop.post(event{kind: evQueueReady, queue: id, context: context})
	return StatusOK
}

func (q *sharedQueues) dequeue(id uint32) ([]byte, Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sq, ok := q.queues[id]
	if !ok {
		return nil, StatusNotFound
	}
	if len(sq.items) == 0 {
		return nil, StatusEmpty
	}
	item := sq.items[0]
	sq.bytes -= len(item)
	sq.items[0] = nil
	sq.items = sq.items[1:]
	if len(sq.items) == 0 {
		sq.items = nil
	}
	return item, StatusOK
}

func (q *sharedQueues) deleteVM(vmID string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, id := range q.byName {
		if key.vmID == vmID {
			delete(q.byName, key)
			delete(q.queues, id)
		}
	}
}
