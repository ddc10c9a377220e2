//go:build !tinygo

package sdk

import "github.com/oncegate/oncegate/plugin/cache"

// Without a host there are no metrics, no headers, no time, no randomness and no environment.

func defineMetric(uint32, string) uint32 { return 0 }

func addMetric(uint32, int64) {}

func recordMetric(uint32, uint64) {}

func now() int64 { return 0 }

func random([]byte) bool { return false }

func environment() []byte { return nil }

func headerPairs(uint32) []byte { return nil }

func sharedData(string, []byte) ([]byte, uint32, cache.Status) { return nil, 0, cache.Failed }

func grpcStream([]byte, string, string, []byte) (token, status uint32) { return 0, 1 }

func grpcSend(uint32, []byte) bool { return false }

func grpcCancel(uint32) {}

func grpcMessage(uint32, []byte) []byte { return nil }

func setProperty(string, string) {}

func sendLocalResponse(int, int, string, []byte, []byte) bool { return false }
