package view

import (
	"fmt"
	"math/big"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tranche-dev/tranche/pkg/api/v1alpha1"
	"github.com/tranche-dev/tranche/pkg/units"
)

// The most that a queue may be given. No cluster has that much, and sums over a
// hundred such queues stay below 2^63.
const (
	mostGPUs     = 1_000_000_000
	mostMilliCPU = 1_000_000_000_000
	mostMemory   = 1 << 56 // 64Pi
)

// rounding is the direction in which an amount becomes a whole number.
type rounding bool

// A guarantee is rounded up, a ceiling down: nobody gets less than what is
// promised, and nobody more than what is allowed.
const (
	down rounding = false
	up   rounding = true
)

// amount returns q × per as a whole number. False: it is negative, or more than
// most. It never writes out q's digits, of which there may be a thousand
// million: see units.WholeNumber.
func amount(q resource.Quantity, per, most int64, round rounding) (int64, bool) {
	const digits = 40 // more than anybody writes
	d := q.AsDec()    // q is a copy
	scale := int64(d.Scale())
	if scale > digits || scale < -digits || d.UnscaledBig().BitLen() > 4*digits || d.Sign() < 0 {
		return 0, false
	}
	n := new(big.Int).Mul(d.UnscaledBig(), big.NewInt(per))
	if scale <= 0 {
		n.Mul(n, power(-scale))
	} else if _, rest := n.QuoRem(n, power(scale), new(big.Int)); round == up && rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() || n.Int64() > most {
		return 0, false
	}
	return n.Int64(), true
}

// power returns 10^n; n is small.
func power(n int64) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(n), nil) }

// GPUsOf writes shares as a decimal number of GPUs, such as "3.5". A GPU cut
// into perGPU shares that no three decimals express is rounded to the nearest:
// a third is "0.333".
func GPUsOf(shares, perGPU units.Shares) v1alpha1.GPUs {
	sign := ""
	whole, rest := int64(shares/perGPU), int64(shares%perGPU)
	if shares < 0 {
		sign, whole, rest = "-", -whole, -rest
	}
	thousandths := (2*1000*rest + int64(perGPU)) / (2 * int64(perGPU))
	if thousandths == 1000 {
		whole, thousandths = whole+1, 0
	}
	if whole == 0 && thousandths == 0 {
		return "0"
	}
	text := fmt.Sprintf("%s%d.%03d", sign, whole, thousandths)
	return v1alpha1.GPUs(strings.TrimRight(strings.TrimRight(text, "0"), "."))
}
