// Package server answers kube-scheduler over HTTPS and people over plain HTTP.
//
// The scheduler throws away the body of every answer but 200, so whatever goes
// wrong is said inside the result; only who may not call at all gets a 403. An
// answer is made in memory and sent with its length, so that the connection can
// be used again. Handlers decode, make one call and encode; a panic in one is
// recovered, counted and answered.
package server
