//go:build !linux

package vfs

import "os"

func allocate(*os.File, int64) error { return ErrNotSupported }

func writeback(*os.File, int64, int64) {}

func datasync(f *os.File) error { return f.Sync() }
