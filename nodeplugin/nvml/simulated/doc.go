// Package simulated is an NVML for machines without GPUs: go-nvml's mock server
// and devices, with what they lack laid over them: events, processes, memory
// in use, memory nodes, links, memory limits, and failures of one GPU or of
// the whole library. A file scripts it and may be changed while it runs; see
// package simulation.
//
// It answers through package nvidia's wrapper, so that the code which talks to
// the real library is the code under test.
package simulated
