// Package objectwriter decides when reports are written into objects of the API
// server, and when that is tried again; how, its users say.
//
// Of several reports of one object the last is written, by one worker at a time.
// What is urgent is written at once, mere numbers seldom. A write that fails
// backs off and is made again until it succeeds or a later report takes its
// place.
package objectwriter
