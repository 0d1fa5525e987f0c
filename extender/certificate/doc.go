// Package certificate keeps what TLS needs fresh while connections go on: the
// serving certificate, from files or from a Secret that the extender fills and
// renews itself, and the CA of the client certificates.
//
// The Secret's CA lives for ten years: kube-scheduler reads its CA file once,
// when it starts, so a new CA would need its restart. Serving certificates live
// for one year and are renewed 90 days before their end.
package certificate
