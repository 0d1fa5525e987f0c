// Package manifests checks what users install: the chart and what is generated
// from it, the scheduler configuration, the samples and the Dockerfile. It runs
// the real helm, at the version that tools/go.mod pins.
//
// Whether an API server accepts and obeys these objects is shown in tests/e2e.
package manifests
