//go:build race

package sim

// seedsPerTest is how many seeds TestSeeds runs when nothing else is said.
const seedsPerTest = 300
