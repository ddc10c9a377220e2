package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/oncegate/oncegate/manager/client"
)

// outbox stands for a mail server: something outside that must not get the same mail twice. Each line has the id of its
// job, which makes sending idempotent.
type outbox struct {
	mu   sync.Mutex
	file *os.File
	line map[string]int // by job id
}

// entry is a line of the file.
type entry struct {
	Job  string `json:"job"`
	To   string `json:"to"`
	Text string `json:"text"`
}

func openOutbox(name string) (*outbox, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	b := &outbox{file: f, line: make(map[string]int)}
	if err := b.load(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// load reads what was sent before. It removes an incomplete last line, which a crash left of a mail that was never
// reported as sent.
func (b *outbox) load() error {
	r := bufio.NewReader(b.file)
	var size int64
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil || e.Job == "" {
			return fmt.Errorf("line %d is not of this program", len(b.line)+1)
		}
		size += int64(len(line))
		b.line[e.Job] = len(b.line) + 1
	}
	if err := b.file.Truncate(size); err != nil {
		return err
	}
	_, err := b.file.Seek(size, io.SeekStart)
	return err
}

func (b *outbox) send(_ context.Context, j *client.Job) (any, error) {
	e := entry{Job: j.ID}
	if err := json.Unmarshal(j.Payload, &e); err != nil || e.To == "" {
		return nil, client.Permanent(errors.New(`payload: must be {"to": ..., "text": ...}`))
	}
	e.Job = j.ID // whatever the payload says
	b.mu.Lock()
	defer b.mu.Unlock()
	if n, sent := b.line[j.ID]; sent {
		return n, nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	end, err := b.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	if _, err = b.file.Write(append(line, '\n')); err == nil {
		err = b.file.Sync()
	}
	if err != nil { // the incomplete line must not stay
		_ = b.file.Truncate(end)
		_, _ = b.file.Seek(end, io.SeekStart)
		return nil, err
	}
	b.line[j.ID] = len(b.line) + 1
	return b.line[j.ID], nil
}

func (b *outbox) close() { _ = b.file.Close() }
