// Package cli is the kubectl plug-in: kubectl tranche.
package cli
