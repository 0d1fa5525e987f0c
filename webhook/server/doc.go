// Package server carries the decisions of packages mutate and validate to the
// API server: HTTPS with admission reviews, the informers that decisions
// depend on, the serving certificate, metrics and health.
//
// Replicas share nothing but the Secret with the certificate. Answering a
// review changes nothing and asks nobody, so dry runs need no special care.
package server
