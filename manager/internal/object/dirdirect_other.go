//go:build !linux

package object

import "os"

func writeDirectly(*os.File, []byte) int { return 0 }
