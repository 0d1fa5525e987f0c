// Package gangobject writes Gang objects: what the planner knows of each gang,
// for people and for other programs.
//
// An object is read before it is written, so that what somebody else made of it
// counts: an object that a person made is never deleted, and its spec never
// touched. When it is written is for objectwriter.
package gangobject
