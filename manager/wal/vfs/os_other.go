//go:build !linux

package vfs

import "os"

func allocate(*os.File, int64) error { return ErrNotSupported }

func datasync(f *os.File) error { return f.Sync() }
